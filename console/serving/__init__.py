"""The console in a browser: textual-serve's terminal page and process protocol behind a door of our own.

textual-serve asks nobody for a name, takes its font from an outside host and starts its app through a shell. What is here
instead: `gate.py` says who may in, `server.py` serves the page and joins each tab's websocket to a console process of its
own, `process.py` is the server's end of such a process, `tab.py` is the process, `page/` is what the browser loads.
A run notices nothing of it: a tab is one more console.
"""
