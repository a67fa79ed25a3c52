"""A child process of another Python that runs a module of this package: a line for a request, a line for its answer, deadlines.

Its `kernels` is this very folder, put there by name: with PYTHONPATH all packages beside it (those of the console's environment)
would stand before the child's own, and other distributions are called `kernels` too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent
_START = (
    "import importlib.util as u, runpy, sys; folder, module = sys.argv[1:3]; "
    "spec = u.spec_from_file_location('kernels', folder + '/__init__.py', submodule_search_locations=[folder]); "
    "package = sys.modules['kernels'] = u.module_from_spec(spec); spec.loader.exec_module(package); "
    "runpy.run_module(module, run_name='__main__')"
)


def command(python: str, module: str) -> list[str]:
    return [python, "-c", _START, str(PACKAGE), module]


#: An answer is some hundred characters; what floods its stdout must not fill the memory.
_LONGEST = 1_000_000


class ChildGone(Exception):
    """The child crashed or was ended at its deadline; the text says which, with the end of its stderr."""


class Child:
    """`argv` speaks lines of JSON. It has a process group of its own, so that Ctrl-C ends it through its parent only, and what it
    started (assemblers) ends with it."""

    def __init__(self, argv: list[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        self._expired = False
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=folder,
            env=dict(environment),
            start_new_session=True,
            text=True,
            encoding="utf-8",
            errors="replace",  # what is no text is no JSON either, and told as such
        )

    def ask(self, request: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died meanwhile: read() tells how
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        return self.read(deadline_s)

    def read(self, deadline_s: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        timer = threading.Timer(deadline_s, self._expire)
        timer.daemon = True
        timer.start()
        try:
            line = self.process.stdout.readline(_LONGEST)
        finally:
            timer.cancel()
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if isinstance(answer, dict):
            return answer
        self.kill()
        if self._expired:
            raise ChildGone(f"no answer in {deadline_s:g} s")
        code = self.process.wait(10)
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise ChildGone(
            f"the process {how}{self._last_words()}" if not line else f"answered {line.strip()[:200]!r}, which is no JSON"
        )

    def kill(self) -> None:
        """At once, with all that it started, also where it has ended itself: what it left may hold its stdout open. May be
        called from any thread, and twice."""
        if self.process.returncode is None:  # not yet waited for, so that the number is still its own
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        self.kill()
        self.process.wait(10)
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):  # what was not yet sent to a dead child
                    stream.close()

    def _expire(self) -> None:
        self._expired = True
        self.kill()

    def _last_words(self) -> str:
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 2000))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1][:300]}" if lines else ""
