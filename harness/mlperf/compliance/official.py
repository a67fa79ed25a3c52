"""The verification scripts of mlcommons/inference, where somebody has them, run beside our own check.

They are started out of process in a folder of their own (they write into the working directory), and what they print stays
there. Their verdict is read from what they print; a script that ends otherwise has not passed.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

from harness.mlperf.accuracy import command
from harness.mlperf.accuracy.errors import ScoringError
from harness.mlperf.compliance.audits import Attempt
from harness.mlperf.scores import Check

FOLDER: Final = "official"
_SCRIPT: Final = "run_verification.py"
_PASSED: Final = re.compile(r"\bTEST PASS\b|verification complete")
_FAILED: Final = re.compile(r"\bTEST FAIL\b|verification failed|check pass: False")
_TOLD: Final = ("pass", "fail", "mean", "score", "threshold", "check", "error", "verification")
_DEADLINE_S: Final = 3600.0


def script_of(test: str, folder: Path) -> Path:
    """In the repository's folder, its compliance/ or the test's own. Raises ScoringError."""
    places = [folder / test, folder / "compliance" / test, folder / "nvidia" / test, folder / "compliance/nvidia" / test]
    if folder.name == test:
        places.insert(0, folder)
    found = next((place / _SCRIPT for place in places if (place / _SCRIPT).is_file()), None)
    if found is None:
        raise ScoringError(f"has no {test}/{_SCRIPT}; --official names the compliance folder of mlcommons/inference", folder)
    return found


def run(attempt: Attempt, folder: Path, score: float | None) -> tuple[Check, str]:
    """Our view of its verdict, and what it said. `score`: exact_match, which TEST07's script asks a program for."""
    script = script_of(attempt.test, folder).resolve()
    place = attempt.folder / FOLDER
    shutil.rmtree(place, ignore_errors=True)
    try:
        place.mkdir(parents=True)
    except OSError as error:
        raise ScoringError(f"cannot be made: {error.strerror or error}", place) from error
    words = [sys.executable, str(script), "-c", str(attempt.folder.resolve()), "-o", str((place / "out").resolve())]
    words += _arguments(attempt, score)
    (place / "command.txt").write_text(shlex.join(words) + "\n", encoding="utf-8")
    text = command.run(words, place, place / "printed.txt", _DEADLINE_S, must_succeed=False)
    for written in sorted(place.glob("verify_*.txt")) + sorted((place / "out").rglob("verify_*.txt")):
        text += "\n" + written.read_text(encoding="utf-8", errors="replace")
    passed = _PASSED.search(text) is not None and _FAILED.search(text) is None
    said = [line.strip() for line in text.splitlines() if any(word in line.lower() for word in _TOLD)]
    told = " | ".join(dict.fromkeys(said))[:2000] or "it said nothing of a verdict"
    verdict = f"{script.name} {'passes' if passed else 'does not pass'} it (what it printed lies in {FOLDER}/ of the attempt)"
    return Check("official script", passed, verdict), told


def _arguments(attempt: Attempt, score: float | None) -> list[str]:
    if attempt.test == "TEST06":  # a script that takes the id as text finds no end of text twice: our own check does
        return ["-s", attempt.scenario, "-e", str(attempt.eos), "-d", "int32"]
    words = ["--audit-config", str((attempt.folder / "audit.config").resolve())]
    if attempt.test == "TEST07":
        if score is None:
            raise ScoringError("TEST07's script wants a score, and there is none")
        # It hands this to a shell, and puts places into its braces: digits and quotes only.
        words += ["--accuracy-script", f"""echo "'exact_match': {score:.6f}" """.strip()]
    return words
