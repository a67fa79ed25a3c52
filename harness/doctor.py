"""Will this machine carry a run? Checks that look and change nothing, each with what to do when it fails.

`ok` is None where nothing is wrong but a person should know, or where it cannot be known from here. What is looked at
can be passed in, so that a test needs no other machine.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.spec import KernelsSpec

LIBRARIES = ("textual", "pyzmq", "msgspec", "pydantic", "numpy", "polars", "tokenizers", "cyclopts")
#: Two sockets a replica, the sockets of workers and consoles, files; and room to spare.
FILES_PER_REPLICA, FILES_BASE = 4, 256
FREE_DISK_GB = 1.0
#: Head, driver, and as much again for the replicas' processes.
CORES_FOR_LOCAL_FLEET = 4


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool | None
    detail: str
    fix: str = ""


def examine(runs_root: Path) -> list[Check]:
    probes: list[Callable[[], Check]] = [
        python,
        libraries,
        loadgen,
        open_files,
        loopback_port,
        lambda: disk(runs_root),
        clock_resolution,
        clock_synchronised,
        terminal,
        locale,
        cpus,
        accelerators,
    ]
    return [*(probe() for probe in probes), *engines()]


def python(running: tuple[int, int] = sys.version_info[:2], name: str = platform.python_version()) -> Check:
    ok = (3, 11) <= running < (3, 14)
    return Check(
        "python", ok, f"{name} at {sys.executable}", "" if ok else "use Python 3.11, 3.12 or 3.13: LoadGen has wheels for these"
    )


def libraries() -> Check:
    found, missing = [], []
    for name in LIBRARIES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        return Check(
            "libraries", False, f"missing: {', '.join(missing)}", "install paceline again: pip install -c constraints.txt -e ."
        )
    return Check("libraries", True, ", ".join(found))


def loadgen() -> Check:
    """Imported in a process of its own: a broken extension module would take this one with it."""
    if importlib.util.find_spec("mlperf_loadgen") is None:
        return Check(
            "loadgen",
            False,
            "mlperf_loadgen is not installed",
            "pip install mlcommons-loadgen (wheels: Linux x86_64, macOS arm64)",
        )
    done = subprocess.run(
        [sys.executable, "-c", "import mlperf_loadgen"], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return Check("loadgen", False, f"cannot be imported: {last}", "install mlcommons-loadgen for this Python again")
    return Check("loadgen", True, f"mlcommons-loadgen {version('mlcommons-loadgen')}")


def open_files(limits: tuple[int, int] | None = None) -> Check:
    """A head raises its soft limit to the hard one by itself, so the hard one counts."""
    soft, hard = limits if limits is not None else resource.getrlimit(resource.RLIMIT_NOFILE)
    carries = 1 << 30 if hard == resource.RLIM_INFINITY else max(0, (hard - FILES_BASE) // FILES_PER_REPLICA)
    shown = "unlimited" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    detail = f"limit {shown} (now {soft:,}, raised at start): " + (
        "enough for 512 replicas and more" if carries >= 512 else f"enough for about {carries} replica{'s' * (carries != 1)}"
    )
    if carries >= 512:
        return Check("open files", True, detail)
    return Check("open files", False if carries < 64 else None, detail, "ulimit -Hn 65536, or LimitNOFILE=65536 in the service")


def loopback_port() -> Check:
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            probe.listen()
            with socket.create_connection(probe.getsockname(), timeout=2):
                return Check("loopback", True, f"127.0.0.1 listens and connects (port {probe.getsockname()[1]} was free)")
    except OSError as error:
        return Check(
            "loopback",
            False,
            f"127.0.0.1 cannot be used: {error.strerror or error}",
            "bring the loopback interface up: ip link set lo up",
        )


def disk(runs_root: Path) -> Check:
    """The runs' folder may not exist yet; then the nearest folder above it that does."""
    at = next(folder for folder in (runs_root, *runs_root.parents) if folder.exists())
    free_gb = shutil.disk_usage(at).free / 1e9
    if not os.access(at, os.W_OK):
        return Check("disk", False, f"{at} cannot be written", "set PACELINE_RUNS to a folder of yours")
    detail = f"{free_gb:,.1f} GB free for {runs_root}"
    if free_gb < FREE_DISK_GB:
        return Check("disk", False, detail, "free some space, or set PACELINE_RUNS to another disk")
    return Check("disk", True, detail)


def clock_resolution() -> Check:
    steps = []
    for _ in range(200):
        before = now = time.monotonic_ns()
        while now == before:
            now = time.monotonic_ns()
        steps.append(now - before)
    step_ns = sorted(steps)[len(steps) // 2]
    ok = step_ns < 1_000_000
    return Check(
        "monotonic clock",
        ok,
        f"steps of {step_ns:,} ns",
        "" if ok else "latencies of milliseconds cannot be measured on this clock",
    )


def clock_synchronised(sysfs: Path = Path("/run/systemd/timesync/synchronized")) -> Check:
    """Only the times of journal entries depend on it: latencies are measured on one monotonic clock."""
    if sysfs.exists():
        return Check("system clock", True, "synchronised (systemd-timesyncd)")
    asked = _output("timedatectl", "show", "--property=NTPSynchronized", "--value")
    if asked == "yes":
        return Check("system clock", True, "synchronised (timedatectl)")
    if asked == "no":
        return Check(
            "system clock",
            None,
            "not synchronised: times in journals of several machines will differ",
            "timedatectl set-ntp true",
        )
    return Check("system clock", None, "cannot be known here whether it is synchronised (latencies do not depend on it)")


def terminal(environ: Mapping[str, str] = os.environ, size: tuple[int, int] | None = None, tty: bool | None = None) -> Check:
    if not (sys.stdout.isatty() if tty is None else tty):
        return Check("terminal", None, "output is not a terminal here; the console needs one, `run --no-console` does not")
    columns, lines = size if size is not None else shutil.get_terminal_size()
    term = environ.get("TERM", "")
    truecolor = environ.get("COLORTERM", "") in ("truecolor", "24bit")
    detail = f"TERM={term or '(unset)'}, {columns}x{lines}, {'true colour' if truecolor else 'no true colour announced'}"
    if term in ("", "dumb"):
        return Check("terminal", False, detail, "set TERM to what your terminal is, for instance xterm-256color")
    advice = []
    if columns < 80 or lines < 24:
        advice.append("enlarge it to 80x24 or more")
    if not truecolor:
        advice.append("export COLORTERM=truecolor if your terminal has it")
    if environ.get("TMUX"):
        advice.append(
            "in tmux: set -g default-terminal tmux-256color, set -ga terminal-overrides ',*:Tc', set -g set-clipboard on"
        )
    return Check("terminal", None if advice else True, detail, "; ".join(advice))


def locale(environ: Mapping[str, str] = os.environ) -> Check:
    named = next((environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(name)), "")
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    if "utf8" in named.lower().replace("-", "") or (not named and encoding == "utf8"):
        return Check("locale", True, named or "none set; Python writes UTF-8")
    return Check("locale", None, f"{named or 'none set'} is not UTF-8: charts and marks may not show", "export LANG=C.UTF-8")


def cpus(usable: int | None = None) -> Check:
    """A local synthetic fleet runs on the cores of the head and the driver: its latencies then hold the wait for a core."""
    able = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = able if usable is None else usable
    if count >= CORES_FOR_LOCAL_FLEET:
        return Check("cpu", True, f"{count} usable; head and driver take one each at full load, a local fleet shares the rest")
    if count >= 2:
        detail = (
            f"{count} usable: enough for the demo; at full load head and driver take one each, and a local fleet has to share"
        )
    else:
        detail = "1 usable: head, driver and replicas all wait for it, and latencies hold that wait"
    advice = f"{CORES_FOR_LOCAL_FLEET} or more, or a lower load.target_qps, for a local synthetic fleet that keeps to its model"
    return Check("cpu", None, detail, advice)


def accelerators(dev: Path = Path("/dev"), environ: Mapping[str, str] = os.environ) -> Check:
    """What a worker on this machine would share out among its replicas."""
    from harness.worker.devices import take_inventory

    found = take_inventory(environ, dev)
    if any(inventory.ids for inventory in found):
        return Check("accelerators", True, "; ".join(map(str, found)))
    if found:
        return Check("accelerators", None, "; ".join(map(str, found)), "unset that variable, unless it hides them on purpose")
    detail = "none (no /dev/nvidia0, and no AMD GPU in /sys/class/kfd with /dev/kfd): synthetic replicas and CPU builds need none"
    return Check("accelerators", None, detail)


def engines() -> list[Check]:
    """For every engine whether replicas of it can start in this environment; one that can is enough."""
    from harness.engines import registry

    reasons = {name: _why_not(name) for name in registry.names()}
    able = [_named(name) for name, why in reasons.items() if not why]
    checks = [Check("engines", bool(able), f"can start here: {', '.join(able) or 'none'}", "" if able else "install an engine")]
    for name, why in reasons.items():
        if why:
            checks.append(Check(f"engine {name}", None, f"cannot start here: {why}"))
    return checks


def engine(name: str, python: str | None = None) -> Check:
    """Whether replicas of this one can start: here, or in the environment of another interpreter (`fleet.python`)."""
    from harness.engines import registry

    if python is None or name not in registry.names():
        why = _why_not(name)
    else:
        why = _why_not_in(python, name)
    if why:
        others = [other for other in registry.names() if other != name and not _why_not(other)]
        return Check("engine", False, f"{name}: {why}", f"or set fleet.engine to one that can start here: {', '.join(others)}")
    return Check("engine", True, _named(name) + (f", in {python}" if python else ""))


def _named(name: str) -> str:
    from harness.engines import registry

    return f"{name} (simulates, measures no hardware)" if registry.factory(name).synthetic else name


def _why_not(name: str) -> str:
    from harness.engines import registry
    from harness.engines.base import EngineError

    try:
        registry.factory(name)
        return registry.cannot_start(name)
    except (EngineError, ImportError) as error:
        return str(error)


def _why_not_in(python: str, name: str) -> str:
    try:
        return _answer_of(
            python, "from harness.engines import registry; print('answer:' + registry.cannot_start(sys.argv[1]))", name
        )
    except _NoAnswer as error:
        return str(error)


class _NoAnswer(Exception):
    """Of an interpreter; why, in words."""


def _answer_of(python: str, code: str, *arguments: str) -> str:
    """Asked there as a replica would be started; it imports nothing heavy, but the file system may be slow."""
    from harness.worker.surroundings import package_folder

    found = shutil.which(os.path.expanduser(python))
    if found is None:
        raise _NoAnswer(f"fleet.python = {python}: no such program")
    command = [found, "-c", f"import sys; {code}", *arguments]
    with TemporaryDirectory() as aside:
        environ = {**os.environ, "PYTHONPATH": str(package_folder(Path(aside)))}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)
        except subprocess.TimeoutExpired:
            raise _NoAnswer(f"fleet.python = {python}: no answer within 60 s") from None
        except OSError as error:
            raise _NoAnswer(f"fleet.python = {python}: {error.strerror or error}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise _NoAnswer(f"fleet.python = {python}: {last}")
    _, answered, answer = done.stdout.rpartition("answer:")
    if not answered:
        raise _NoAnswer(f"fleet.python = {python}: it is no Python")
    return answer.strip()


def kernels(asked: KernelsSpec, python: str | None = None) -> Check | None:
    """Whether our MoE kernels can be had where replicas start, by what is installed there, and which tables the store has.
    None where nobody asked for them. Whether they fit the model and the device only a replica can tell, and does."""
    if not asked.asked:
        return None
    where = f"in {python}" if python is not None else f"in {sys.prefix}"
    try:
        code = (
            "from importlib.util import find_spec; print('answer:' + ' '.join(n for n in sys.argv[1:] if find_spec(n) is None))"
        )
        missing = _answer_of(python or sys.executable, code, *(("torch", "triton") if asked.moe == "paceline" else ()))
    except _NoAnswer as error:
        return Check("kernels", False, str(error), "give the interpreter of an environment with vLLM")
    tables = _tables(asked.store)
    what = f'fleet.kernels.moe = "{asked.moe}"'
    if missing:
        fix = "install it beside vLLM, or name another environment (fleet.python)"
        so = "replicas are refused (required = true)" if asked.required else "vLLM's own kernel runs"
        level = False if asked.required else None
        return Check("kernels", level, f"{what}: no {' and no '.join(missing.split())} {where}, so {so}", fix)
    if tables == 0:
        fix = "paceline kernels tune --store FOLDER, or leave fleet.kernels.store out for the shipped ones"
        return Check("kernels", None, f"{what}: no table in {asked.store}", fix)
    told = "the shipped tables" if tables is None else f"{tables} table{'s' * (tables != 1)} in {asked.store}"
    return Check("kernels", True, f"{what}, {told}")


def _tables(store: str | None) -> int | None:
    """By their names: E=…,N=….json in the folder, or in folders of node classes there. None: no store is named."""
    if store is None:
        return None
    at = Path(store)
    return sum(1 for pattern in ("E=*.json", "*/E=*.json") for file in at.glob(pattern) if not file.name.endswith(".about.json"))


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return None
