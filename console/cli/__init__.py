"""The command line: `paceline …`. One small file a group of commands; what costs time to import is imported by its command.

`paceline --help` and `paceline rate` start without Textual and without polars.
"""

from console.cli.app import main

__all__ = ["main"]
