"""Where things lie in a run's folder. The only place that knows file names.

spec.json           what was asked (RunSpec)
run.json            spec, versions, phase, attempts, verdict; replaced atomically
head.json           how to reach the head: pid, epoch, control, telemetry; replaced when a head starts
lock                held (flock) by the head that owns the folder
reserve             bytes kept back for run.json should the disk fill up; only while the head lives
workers.json        the worker processes of a local run, by pid and start time
keys/               CURVE keys, 0600
journal.jsonl       one entry a line, appended
fleet.json          which GPUs each replica owned, from when on; replaced atomically
cluster.jsonl       pods and nodes as the head saw them, one change a line, appended; only of a run on a cluster
samples/NNNNNN.parquet, timeline/NNNNNN.parquet, gpus/NNNNNN.parquet     immutable chunks, written aside and renamed
gpus/fetched.jsonl  what was fetched into gpus/ after the run, one fetch a line; only then
attempts/<n>/       settings asked and in effect, LoadGen's own logs, accuracy.json and compliance.json once judged
logs/               head.log, driver-<n>.log, node000.log, node000-gpu0.log
labels.json         tags, note and pin that people gave it; replaced atomically
exports/            pictures and tables that a console was asked to save; made for the first of them
prometheus/         config and data of the run's own Prometheus; only while it runs
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunFolder:
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def run_json(self) -> Path:
        return self.path / "run.json"

    @property
    def head_json(self) -> Path:
        return self.path / "head.json"

    @property
    def spec_json(self) -> Path:
        return self.path / "spec.json"

    @property
    def workers_json(self) -> Path:
        return self.path / "workers.json"

    @property
    def reserve(self) -> Path:
        return self.path / "reserve"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def fleet_json(self) -> Path:
        return self.path / "fleet.json"

    @property
    def cluster(self) -> Path:
        return self.path / "cluster.jsonl"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    @property
    def timeline(self) -> Path:
        return self.path / "timeline"

    @property
    def gpus(self) -> Path:
        return self.path / "gpus"

    @property
    def fetched(self) -> Path:
        return self.gpus / "fetched.jsonl"

    @property
    def labels_json(self) -> Path:
        return self.path / "labels.json"

    @property
    def prometheus(self) -> Path:
        return self.path / "prometheus"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def exports(self) -> Path:
        return self.path / "exports"

    def attempt(self, number: int) -> Path:
        return self.path / "attempts" / str(number)

    def log(self, process: str) -> Path:
        """`head`, `driver-1`, `node000` or a slot name."""
        return self.logs / (process.replace("/", "-") + ".log")

    def log_of_slot(self, slot: str) -> Path:
        """The replica's own log, or that of the process that carries its whole node."""
        own = self.log(slot)
        shared = self.log(slot.partition("/")[0])
        return shared if shared.exists() and not own.exists() else own


def at_home(text: str) -> Path:
    """`~` as the home folder; `~nobody`, who has none here, as it is written."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def runs_root(configured: str | None = None) -> Path:
    """`record.dir` of the spec, else $PACELINE_RUNS, else ./runs."""
    return at_home(configured or os.environ.get("PACELINE_RUNS") or "runs").resolve()


def new_run_folder(root: Path, name: str, now: float | None = None) -> RunFolder:
    """Create `<root>/<name>-YYYYmmdd-HHMMSS` (with -2, -3 … when taken)."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    root.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, 1000):
        suffix = "" if attempt == 1 else f"-{attempt}"
        path = root / f"{name}-{stamp}{suffix}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return RunFolder(path)
    raise FileExistsError(f"{root}/{name}-{stamp}-* are all taken")


class NoSuchRun(Exception):
    """No run of that name; the text says where was looked and what is there."""


def find_run(which: str | None, root: Path) -> RunFolder:
    """A run by folder path, by name, by unique part of its name, or (None) the newest."""
    if which and os.path.exists(Path(which) / "run.json"):  # Path.exists raises for a name that is too long
        return RunFolder(Path(which).resolve())
    runs = list_runs(root)
    if not runs:
        raise NoSuchRun(f"no runs in {root} (set PACELINE_RUNS or record.dir to look elsewhere)")
    if which is None:
        return runs[0]
    hits = [run for run in runs if run.name == which] or [run for run in runs if re.search(re.escape(which), run.name)]
    if len(hits) == 1:
        return hits[0]
    if not hits:
        names = ", ".join(run.name for run in runs[:5])
        raise NoSuchRun(f"no run named {which!r} in {root}; the newest are {names}")
    raise NoSuchRun(f"{which!r} fits {len(hits)} runs: {', '.join(run.name for run in hits[:5])}; give more of the name")


def list_runs(root: Path) -> list[RunFolder]:
    """Newest first."""
    if not root.is_dir():
        return []
    # os.path, because Path.is_file raises for a folder that is closed to us: that one must not hide the others.
    found = [RunFolder(path) for path in root.iterdir() if os.path.isfile(path / "run.json")]
    return sorted(found, key=lambda run: os.path.getmtime(run.run_json) if os.path.exists(run.run_json) else 0.0, reverse=True)
