"""The score of a log: every answer once, found, compared and counted by subset; then exact_match and its gate.

exact_match is the percentage of correct answers. Where a subset's questions are asked several times (gpt-oss-120b: aime25
eight times, gpqa_diamond five, livecodebench_v6 three) each of its answers counts that much less, as in the reference's
eval_mlperf_accuracy.py. One pass over the log; texts are not kept, but for the subsets that a command scores.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from harness.mlperf.accuracy.errors import ScoringError
from harness.mlperf.accuracy.log import AccuracyLog, Logged
from harness.mlperf.accuracy.outside import ALL, Scorer, correct_of
from harness.mlperf.accuracy.subsets import Rule, rule_for
from harness.mlperf.accuracy.texts import Texts
from harness.mlperf.accuracy.truths import Truths
from harness.mlperf.rules import MODELS
from harness.mlperf.scores import AccuracyScore, SubsetScore

ANSWERS: Final = "answers.jsonl"
SCORING: Final = "scoring"  # the folder of what commands were given and told
_BATCH: Final = 64
_END_CHARS: Final = 4000  # of a text, in the answers file: where the answer stands
_SHOWN: Final = 5


@dataclass(slots=True)
class _Subset:
    name: str
    rule: Rule | None
    scorer: Scorer | None
    n: int = 0
    correct: float = 0
    unparsed: int = 0


@dataclass(slots=True)
class Counted:
    """What one pass over a log came to."""

    subsets: list[SubsetScore]
    n: int
    tokens: int
    sha256: str
    remarks: list[str] = field(default_factory=list)

    def exact_match(self, mlperf_name: str | None) -> float:
        rules = MODELS.get(mlperf_name or "")
        times = {one.name: (rules.repeats.get(one.name, 1) if rules else 1) for one in self.subsets}
        most = sum(one.n / times[one.name] for one in self.subsets)
        return 100 * sum(one.correct / times[one.name] for one in self.subsets) / most if most else 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """What is scored, with what. `tell`: how far it is, for people who wait."""

    attempt: Path
    truths: Truths
    texts: Texts
    scorers: Sequence[Scorer] = ()
    deadline_s: float = 3600.0
    tell: Callable[[str], None] = lambda text: None


def score(work: Work, mlperf_name: str | None) -> AccuracyScore:
    """Of an accuracy attempt; writes the answers file, not the score. Raises ScoringError."""
    counted = count(work)
    rules = MODELS.get(mlperf_name or "")
    exact_match, per_sample = counted.exact_match(mlperf_name), counted.tokens / counted.n
    remarks, passed = [*counted.remarks], None
    if rules is not None:
        least, most = rules.tokens_per_sample
        if exact_match < rules.accuracy_gate:
            remarks.append(f"exact_match {exact_match:.4f} is under the gate of {rules.accuracy_gate:g}")
        if counted.n != rules.accuracy_samples:
            remarks.append(f"{counted.n:,d} samples were answered, {mlperf_name} has {rules.accuracy_samples:,d}: no submission")
        if not least <= per_sample <= most:
            remarks.append(f"{per_sample:,.1f} tokens per sample are not within {least:g} to {most:g}")
        passed = (
            exact_match >= rules.accuracy_gate and counted.n == rules.accuracy_samples and least <= per_sample <= most
        )  # fmt: skip
    return AccuracyScore(
        metric="exact_match",
        score=exact_match,
        gate=rules.accuracy_gate if rules else None,
        passed=passed,
        n=counted.n,
        expected_n=rules.accuracy_samples if rules else None,
        subsets=counted.subsets,
        tokens_per_sample=per_sample,
        log_sha256=counted.sha256,
        scored_unix=time.time(),
        remarks=remarks,
    )


def count(work: Work) -> Counted:
    """Every sample of the dataset must have exactly one answer. Raises ScoringError."""
    log = AccuracyLog(work.attempt)
    subsets = _subsets(work)
    told_s, tokens, seen = time.monotonic(), 0, bytearray(len(work.truths))
    with _Files(work.attempt, [one for one in subsets.values() if one.scorer is not None]) as files:
        for batch in _batches(log):
            for logged in batch:
                _place(logged, work.truths, seen, log.path)
                tokens += logged.n
            texts = work.texts.decode([(logged.index, logged.ids) for logged in batch])
            for logged, text in zip(batch, texts, strict=True):
                _take(logged, text, work.truths, subsets[work.truths.subsets[logged.index]], files)
            if time.monotonic() - told_s > 1.0:
                told_s = time.monotonic()
                work.tell(f"{log.n:,d} of {len(work.truths):,d} answers read")
        _all_there(seen, log.path)
        files.done()
    remarks = _by_commands(work, list(subsets.values()), log)
    if any(one.rule is not None and one.rule.part == "math" and one.scorer is None for one in subsets.values()):
        remarks.append(
            "MATH answers are compared by normalised text and by value: the official grader may find more of them right"
        )
    found = [
        SubsetScore(one.name, one.n, one.correct, 100 * one.correct / one.n, _how(one), one.unparsed) for one in subsets.values()
    ]
    return Counted(found, log.n, tokens, log.sha256, remarks)


def _subsets(work: Work) -> dict[str, _Subset]:
    """By name. Raises ScoringError for one that nobody scores, before anything long begins."""
    whole = next((scorer for scorer in work.scorers if scorer.name == ALL), None)
    found: dict[str, _Subset] = {}
    for name in sorted(set(work.truths.subsets)):
        scorer = whole or next((scorer for scorer in work.scorers if scorer.takes(name)), None)
        found[name] = _Subset(name, rule_for(name), scorer)
    needy = [one for one in found.values() if one.scorer is None and (one.rule is None or one.rule.fits is None)]
    if needy:
        one = needy[0]
        why = "is code, which has to be run" if one.rule is not None else "has no rule here"
        raise ScoringError(
            f"the subset {one.name} ({work.truths.subsets.count(one.name):,d} samples) {why}: give the program that scores it, "
            f"as in --scorer {one.rule.part if one.rule else one.name}='CMD {{answers}} {{out}}'"
        )
    for scorer in work.scorers:
        if scorer is not whole and not any(scorer.takes(name) for name in found):
            raise ScoringError(f"--scorer {scorer.name}: the dataset has no such subset; it has {', '.join(found)}")
    return found


def _batches(log: AccuracyLog) -> Iterator[list[Logged]]:
    answers = iter(log)
    while batch := list(itertools.islice(answers, _BATCH)):
        yield batch


def _place(logged: Logged, truths: Truths, seen: bytearray, path: Path) -> None:
    if logged.index >= len(truths):
        raise ScoringError(
            f"qsl_idx {logged.index} is beyond {truths.path.name}, which has {len(truths):,d} samples: another dataset was asked",
            path,
        )
    if seen[logged.index]:
        raise ScoringError(f"sample {logged.index} was answered twice; a score needs exactly one answer of each", path)
    seen[logged.index] = 1
    if logged.token_count is not None and logged.token_count != logged.n:
        raise ScoringError(f"sample {logged.index} has {logged.n} tokens and says {logged.token_count}: the log is damaged", path)


def _all_there(seen: bytearray, path: Path) -> None:
    missing = [str(index) for index in itertools.islice((at for at, there in enumerate(seen) if not there), _SHOWN)]
    if missing:
        lacking = len(seen) - sum(seen)
        more = ", …" if lacking > _SHOWN else ""
        raise ScoringError(
            f"{lacking:,d} of {len(seen):,d} samples have no answer (qsl_idx {', '.join(missing)}{more}); "
            "a score needs all of them: was it another dataset, or a part of it?",
            path,
        )


def _take(logged: Logged, text: str, truths: Truths, subset: _Subset, files: _Files) -> None:
    rule, truth = subset.rule, truths.answers[logged.index]
    answer = rule.find(text) if rule is not None else None
    subset.n += 1
    fits = None
    if subset.scorer is None and rule is not None and rule.fits is not None:
        subset.unparsed += answer is None
        fits = answer is not None and rule.fits(answer, truth)
        subset.correct += fits
    row = {
        "qsl_idx": logged.index,
        "dataset": subset.name,
        "ground_truth": truth,
        "answer": answer,
        "correct": fits,
        "tokens": logged.n,
    }
    files.write(row, text, subset)


def _by_commands(work: Work, subsets: Sequence[_Subset], log: AccuracyLog) -> list[str]:
    """Each command once, for all the subsets that it takes. A whole-log command says one number: every subset gets it."""
    folder = work.attempt / SCORING
    remarks = []
    for scorer in {id(one.scorer): one.scorer for one in subsets if one.scorer is not None}.values():
        mine = [one for one in subsets if one.scorer is scorer]
        n = sum(one.n for one in mine)
        work.tell(f"running the scorer of {scorer.name} over {n:,d} answers")
        places = {
            "answers": str(folder / f"{_safe(scorer)}.answers.jsonl"),
            "log": str(log.path.resolve()),
            "dataset": str(work.truths.path.resolve()),
            "tokenizer": str(work.texts.path.resolve()),
        }
        correct = correct_of(scorer, n, places, folder, work.deadline_s)
        for one in mine:
            one.correct = correct * one.n / n
        if len(mine) > 1:
            remarks.append(f"{', '.join(one.name for one in mine)}: one command told one score for all, which stands at each")
    return remarks


def _how(subset: _Subset) -> str:
    if subset.scorer is not None:
        return f"command: {subset.scorer.command}"
    return subset.rule.how if subset.rule is not None else ""


def _safe(scorer: Scorer) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in scorer.name)


class _Files:
    """answers.jsonl to look at, and what each command is given. Written aside; there only when all of the log was read."""

    def __init__(self, attempt: Path, outside: Sequence[_Subset]) -> None:
        self._answers, self._aside = attempt / ANSWERS, attempt / f".{ANSWERS}.tmp"
        self._folder = attempt / SCORING
        self._encode = msgspec.json.Encoder().encode
        self._names = {_safe(one.scorer) for one in outside if one.scorer is not None}
        self._given: dict[str, IO[bytes]] = {}
        self._file: IO[bytes] | None = None

    def __enter__(self) -> _Files:
        try:
            if self._names:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder.mkdir()
            self._file = self._aside.open("wb")
            self._given = {name: (self._folder / f"{name}.answers.jsonl").open("wb") for name in self._names}
        except OSError as error:
            self.__exit__()
            raise ScoringError(f"cannot be written: {error.strerror or error}", self._answers) from error
        return self

    def write(self, row: dict[str, Any], text: str, subset: _Subset) -> None:
        try:
            if self._file is not None:
                self._file.write(self._encode(row | {"text_end": text[-_END_CHARS:]}) + b"\n")
            if subset.scorer is not None:
                self._given[_safe(subset.scorer)].write(self._encode(row | {"text": text}) + b"\n")
        except OSError as error:
            raise ScoringError(f"cannot be written: {error.strerror or error}", self._answers) from error

    def done(self) -> None:
        try:
            for file in (self._file, *self._given.values()):
                if file is not None:
                    file.close()
            os.replace(self._aside, self._answers)
        except OSError as error:
            raise ScoringError(f"cannot be written: {error.strerror or error}", self._answers) from error

    def __exit__(self, *error: object) -> None:
        for file in (self._file, *self._given.values()):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
        self._aside.unlink(missing_ok=True)
