"""The tuner's end of the measuring child: asks, keeps every answer in the journal, and starts another child when one is lost."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kernels.compiling.child import Child, ChildGone, command
from kernels.errors import NotHere
from kernels.store.nodeclass import NodeClass, of_torch_properties
from kernels.tuner.halving import Failed, Measured
from kernels.tuner.journal import Journal, measured_of

START_DEADLINE_S: Final = 300.0  # loads torch, and makes some gigabytes of weights
CONFIG_DEADLINE_S: Final = 120.0  # compiles, runs the gate, captures two graphs
#: So many children lost one after the other are no fault of a configuration.
LOST_AT_MOST: Final = 5


@dataclass(frozen=True, slots=True)
class Probe:
    """What the chosen Python has."""

    gpu: bool
    torch: str
    triton: str
    vllm: str = ""
    device_name: str = ""
    arch: str = ""
    compute_units: int = 0
    memory_bytes: int = 0
    driver: str = ""
    clocks: str = ""

    @property
    def node_class(self) -> NodeClass:
        return of_torch_properties(self.device_name, self.arch, self.compute_units, self.memory_bytes)


def worker_command(python: str) -> list[str]:
    return command(python, "kernels.tuner.worker")


class Node:
    """Children of one Python, one at a time. `close` ends the last."""

    def __init__(self, python: str, cache: Path, *, config_deadline_s: float = CONFIG_DEADLINE_S, rehearse: bool = False) -> None:
        """`rehearse`: the child interprets its kernels, and nothing that it measures is a time of a device."""
        self._python, self._cache, self._deadline_s, self._rehearse = python, cache, config_deadline_s, rehearse
        self._child: Child | None = None
        self._set_up: dict[str, Any] | None = None
        self._ready = False  # the child has the weights of that layer
        self._lost = 0
        self.measured = 0
        self.reused = 0

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.process.pid

    def close(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None
        self._ready = False

    def probe(self, kernel: str) -> Probe:
        """NotHere without torch."""
        answer = self._asked({"do": "probe", "kernel": kernel}, START_DEADLINE_S)
        known = {name: value for name, value in answer.items() if name in Probe.__dataclass_fields__}
        kinds = {"gpu": bool, "compute_units": int, "memory_bytes": int}
        right = all(type(value) is kinds.get(name, str) for name, value in known.items())
        if not right or not {"gpu", "torch", "triton"} <= known.keys():
            raise self._no_answer("probe", answer)
        return Probe(**known)

    def use(self, set_up: Mapping[str, Any]) -> None:
        """The layer that is measured from here on; its weights are made when they are first needed."""
        self._set_up = {"do": "setup", **set_up}
        self._ready = False

    def ceiling_gb_s(self) -> float:
        answer = self._asked({"do": "ceiling"}, START_DEADLINE_S)
        found = answer.get("read_gb_s")
        if not isinstance(found, int | float) or not 0 < found < 1e6:
            raise self._no_answer("ceiling", answer)
        return float(found)

    def _no_answer(self, question: str, answer: Mapping[str, Any]) -> NotHere:
        self.close()
        return NotHere(
            f"{self._python}: {question}: answered {str(answer)[:200]}, which is none of the measuring process's; "
            "name a Python with torch and triton with --python"
        )

    def measure(self, journal: Journal, m: int, what: str, config: Mapping[str, Any], repetitions: int) -> Measured | Failed:
        known = journal.outcome(m, what, config, repetitions)
        if known is not None:
            self.reused += 1
            return known
        outcome = self._measured({"do": "measure", "m": m, "what": what, "config": dict(config), "repetitions": repetitions})
        self.measured += 1
        journal.keep(m, what, config, outcome)
        return outcome

    def _measured(self, question: dict[str, Any]) -> Measured | Failed:
        assert self._set_up is not None
        if not self._ready:
            self._asked(self._set_up, START_DEADLINE_S)
            self._ready = True
        assert self._child is not None
        try:
            answer = self._child.ask(question, self._deadline_s)
        except ChildGone as gone:
            return self._failed(f"the measuring process was lost: {gone}")
        if answer.get("lost"):
            return self._failed(f"the device was lost: {answer['error']}")
        self._lost = 0
        if "uniform_us" in answer:
            try:
                return measured_of(answer)
            except (ValueError, KeyError, TypeError, OverflowError):
                return self._failed(f"the measuring process answered {str(answer)[:200]}")
        return Failed(str(answer.get("failed") or answer.get("error")))

    def _failed(self, why: str) -> Failed:
        self.close()
        self._lost += 1
        if self._lost >= LOST_AT_MOST:
            raise NotHere(
                f"{self._lost} measuring processes were lost one after the other; what was measured is kept. The last one: {why}"
            )
        return Failed(why)

    def _asked(self, question: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
        """For what must work: NotHere, with the child's own words, where it does not."""
        try:
            self._child = self._child or self._started()
            answer = self._child.ask(question, deadline_s)
        except ChildGone as gone:
            self.close()
            raise NotHere(
                f"{self._python}: the measuring process did not {question['do']}: {gone}"
                f"; name a Python with torch and triton with --python"
            ) from gone
        if "error" in answer:
            self.close()
            raise NotHere(f"{self._python}: {question['do']}: {answer['error']}")
        return answer

    def _started(self) -> Child:
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        environment |= {"TRITON_CACHE_DIR": str(self._cache / "triton"), "TRITON_DEFAULT_FP_FUSION": "1"}
        if self._rehearse:
            environment["TRITON_INTERPRET"] = "1"
        try:
            return Child(worker_command(self._python), Path(tempfile.gettempdir()), environment)
        except OSError as error:
            raise NotHere(
                f"{self._python}: cannot be run as a Python ({error.strerror}); name one with torch and triton with --python"
            ) from error
