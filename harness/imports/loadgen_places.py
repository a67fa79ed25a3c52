"""Where LoadGen's logs lie, and what their folders say: a single folder, performance beside accuracy, or a submission's tree.

.../results/<system>/<model>/<scenario>/{performance/run_1, accuracy, TEST07/performance/run_1}
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.imports.errors import ImportProblem
from harness.mlperf.detail_log import DETAIL_LOG
from harness.mlperf.rules import MODELS

SUMMARY: Final = "mlperf_log_summary.txt"
ACCURACY: Final = "mlperf_log_accuracy.json"
TRACE: Final = "mlperf_log_trace.json"
LOGS: Final = (DETAIL_LOG, SUMMARY, ACCURACY, TRACE)
_SCENARIOS: Final = frozenset({"Server", "Offline", "Interactive", "SingleStream", "MultiStream"})
_MOST_FOLDERS: Final = 20_000
_MOST_DEEP: Final = 12
_MOST_ATTEMPTS: Final = 64
#: Folders whose names say nothing about a run.
_GENERIC: Final = re.compile(r"run_\d+|performance|accuracy|results?|logs?|output|unpacked|\d+|attempts", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Place:
    """A folder with a detail log. "" for what its path does not say."""

    folder: Path
    system: str = ""
    model: str = ""
    scenario: str = ""
    test: str = ""  # TEST06, TEST07, TEST09

    @property
    def mlperf_name(self) -> str:
        """The model as LoadGen calls it, if the path names one that has rules here."""
        name = f"{self.model}-interactive" if self.scenario == "Interactive" else self.model
        return name if name in MODELS else ""


def find_places(source: Path) -> list[Place]:
    """Raises ImportProblem where there is no log, or where logs belong to several runs."""
    folders = _folders(source)
    if not folders:
        there = [name for name in LOGS if (source / name).exists()]
        has = f"it has {', '.join(there)} and no" if there else "neither it nor a folder in it has a"
        raise ImportProblem(f"{source}: {has} {DETAIL_LOG}, the one log that says what was run and how it ended")
    places = [_place(folder) for folder in folders]
    runs = sorted({(place.system, place.model) for place in places if place.model})
    if len(runs) > 1:
        listed = ", ".join(f"{system}/{model}" for system, model in runs[:8])
        raise ImportProblem(
            f"{source}: holds {len(runs)} submitted results ({listed}); import one of their folders (results/<system>/<model>)"
        )
    if len(places) > _MOST_ATTEMPTS:
        raise ImportProblem(f"{source}: {len(places)} folders have a {DETAIL_LOG}; import a narrower folder (at most 64)")
    return places


def telling_name(source: Path, places: list[Place]) -> list[str]:
    """Parts of a name for the record."""
    known = next((place for place in places if place.model), None)
    if known is not None:
        scenarios = {place.scenario for place in places if place.scenario}
        return [known.system, known.model, *(scenarios if len(scenarios) == 1 else [])]
    telling = [part for part in source.parts[-3:] if part != "/" and not _GENERIC.fullmatch(part)]
    return [*telling[-1:], *(source.parts[-1:] if telling and telling[-1] != source.name else [])] or ["loadgen"]


def _folders(source: Path) -> list[Path]:
    found = []
    for seen, (folder, folders, names) in enumerate(os.walk(source)):
        if seen > _MOST_FOLDERS:
            raise ImportProblem(f"{source}: more than {_MOST_FOLDERS:,d} folders; import a narrower one")
        if len(Path(folder).relative_to(source).parts) >= _MOST_DEEP:
            folders.clear()
        folders.sort()
        if DETAIL_LOG in names:
            found.append(Path(folder))
    return found


def _place(folder: Path) -> Place:
    parts = folder.parts
    test = next((part for part in reversed(parts[-4:]) if re.fullmatch(r"TEST0[1-9]", part)), "")
    at = next((n for n in range(len(parts) - 1, max(0, len(parts) - 6), -1) if parts[n] in _SCENARIOS), None)
    if at is None or at < 3 or parts[at - 3] != "results":
        return Place(folder, scenario=parts[at] if at is not None else "", test=test)
    return Place(folder, parts[at - 2], parts[at - 1], parts[at], test)
