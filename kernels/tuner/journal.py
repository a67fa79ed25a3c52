"""The journal of a tuning: one line of JSON for each thing that was found out, so that a tuning that ends early loses nothing.

Every line belongs to an identity (kernel hash, triton, device, shape …): what was measured under another one stays in the file
and is not used. A last line that was torn off is passed over.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernels.errors import KernelInputError
from kernels.tuner.halving import Failed, Measured

SYNC_EVERY_S = 2.0


def identity_hash(identity: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


def measured_of(table: Mapping[str, Any]) -> Measured:
    """ValueError, KeyError, TypeError or OverflowError where it is no measurement."""
    found = Measured(
        float(table["uniform_us"]), float(table["zipf_us"]), float(table["spread_us"]), int(table["repetitions"]),
        float(table["error"]), float(table["experts"]), bool(table["rehearsal"]),
    )  # fmt: skip
    least = min(found.uniform_us, found.zipf_us, found.repetitions)
    others = (found.us, found.spread_us, found.error, found.experts)
    if not least > 0 or not all(0 <= value < math.inf for value in others):
        raise ValueError(f"no measurement: {found}")
    return found


def _key(m: int, what: str, config: Mapping[str, Any]) -> str:
    return json.dumps([m, what, config], sort_keys=True)


class Journal:
    """Of one table. Open at most once at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._of = ""
        self._outcomes: dict[str, dict[str, dict[int, Measured | Failed]]] = {}  # identity → key → repetitions; 0: failed
        self._facts: dict[str, dict[str, Any]] = {}
        self._synced_s = 0.0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b", buffering=0)
        except OSError as error:
            raise KernelInputError(
                f"{path}: the tuning's journal cannot be kept there: {error.strerror}; name another --store"
            ) from error
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            self._file.close()
            raise KernelInputError(f"{path}: is no file, so no journal can be kept there; remove it, or name another --store")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise KernelInputError(f"{path}: another process is tuning this; wait until it has ended, or end it") from None
        self._read()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._file.closed:
            with contextlib.suppress(OSError):  # what the disk lost is only measured again
                os.fsync(self._file.fileno())
            self._file.close()

    def use(self, identity: Mapping[str, Any]) -> None:
        """From here on lines are written, and looked for, under this identity."""
        self._of = identity_hash(identity)
        if self._of not in self._facts:
            self._facts[self._of] = {}
            self._write({"kind": "identity", "identity": dict(identity), "unix": round(time.time())})

    def outcome(self, m: int, what: str, config: Mapping[str, Any], repetitions: int) -> Measured | Failed | None:
        """What is known already: a failure, or the measurement of just as many repetitions, so that a tuning that is taken up
        again ranks as it did before; else one of more."""
        known = self._outcomes.get(self._of, {}).get(_key(m, what, config), {})
        if 0 in known:
            return known[0]
        enough = [count for count in known if count >= repetitions]
        return known[min(enough)] if enough else None

    def keep(self, m: int, what: str, config: Mapping[str, Any], outcome: Measured | Failed) -> None:
        body = {"m": m, "what": what, "config": dict(config)}
        if isinstance(outcome, Failed):
            self._write({"kind": "failed", **body, "why": outcome.why})
        else:
            values = {name: getattr(outcome, name) for name in Measured.__dataclass_fields__}
            self._write({"kind": "measured", **body, **values})
        self._keep(self._of, m, what, config, outcome)

    def fact(self, name: str) -> Any:
        """None: not known."""
        return self._facts.get(self._of, {}).get(name)

    def keep_fact(self, name: str, value: Any) -> None:
        self._write({"kind": "fact", "name": name, "value": value})
        self._facts.setdefault(self._of, {})[name] = value

    def _write(self, line: dict[str, Any]) -> None:
        """A line at a time; to the disk itself every few seconds, since a measurement lost is only measured again."""
        self._put(json.dumps({"of": self._of, **line}).encode() + b"\n")
        now_s = time.monotonic()
        if now_s - self._synced_s > SYNC_EVERY_S:
            with contextlib.suppress(OSError):
                os.fsync(self._file.fileno())
            self._synced_s = now_s

    def _put(self, data: bytes) -> None:
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            raise KernelInputError(
                f"{self.path}: cannot be written: {error.strerror}; what it has is kept: free some space and start again, "
                "or name another folder with --store"
            ) from error

    def _read(self) -> None:
        try:
            self._file.seek(0)
            text = self._file.read()
        except OSError as error:
            raise KernelInputError(f"{self.path}: cannot be read: {error.strerror}; name another folder with --store") from error
        for raw in text.split(b"\n"):
            try:
                self._take(json.loads(raw))
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):  # torn, or not ours
                continue
        if text and not text.endswith(b"\n"):
            self._put(b"\n")

    def _take(self, line: dict[str, Any]) -> None:
        of = str(line["of"])
        if line["kind"] == "identity":
            self._facts.setdefault(of, {})
        elif line["kind"] == "fact":
            self._facts.setdefault(of, {})[line["name"]] = line["value"]
        elif line["kind"] in ("measured", "failed"):
            outcome: Measured | Failed
            if line["kind"] == "failed":
                outcome = Failed(str(line["why"]))
            else:
                outcome = measured_of(line)
            self._keep(of, int(line["m"]), str(line["what"]), line["config"], outcome)

    def _keep(self, of: str, m: int, what: str, config: Mapping[str, Any], outcome: Measured | Failed) -> None:
        known = self._outcomes.setdefault(of, {}).setdefault(_key(m, what, config), {})
        known[outcome.repetitions if isinstance(outcome, Measured) else 0] = outcome
