"""Whether the log of a compliance attempt passes its test, by our own reading of it.

The criteria are those of the READMEs and run_verification.py scripts under compliance/ of mlcommons/inference (v6.1), and one
of our own: TEST07 and TEST09 must have asked every sample of their dataset exactly once, which LoadGen does only when told so.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Final

from harness.mlperf import detail_log
from harness.mlperf.accuracy.errors import ScoringError
from harness.mlperf.accuracy.log import AccuracyLog, Logged
from harness.mlperf.accuracy.score import Work, count
from harness.mlperf.compliance.audits import AUDITS, Attempt, Audit
from harness.mlperf.compliance.official import run as run_official
from harness.mlperf.compliance.official import script_of
from harness.mlperf.scores import Check, Compliance

#: Can be judged by the log alone, without a dataset or a tokenizer.
BY_THE_LOG: Final = frozenset({"TEST06", "TEST09"})
_SHOWN: Final = 5


def verify(attempt: Attempt, work: Work | None = None, official: Path | None = None) -> Compliance:
    """`work`: what TEST07's answers are scored with, needed by that test alone. `official`: where the scripts of
    mlcommons/inference lie, whose verdict then counts as well. Raises ScoringError."""
    audit = AUDITS.get(attempt.test)
    if audit is None:
        raise ScoringError(f"there is no compliance test {attempt.test!r} here; there are {', '.join(AUDITS)}")
    score, said = None, ""
    if official is not None:
        script_of(attempt.test, official)  # before anything long begins
    if attempt.test == "TEST06":
        checks, remarks = _test06(attempt, audit)
    elif attempt.test == "TEST09":
        checks, remarks = _test09(attempt, audit), []
    elif work is None:
        raise ScoringError("TEST07 is verified by the score of its answers: that needs the dataset and the model's tokenizer")
    else:
        checks, remarks, score = _test07(attempt, audit, work)
    if official is not None and (attempt.test != "TEST07" or score is not None):
        check, said = run_official(attempt, official, score)
        checks.append(check)
        if attempt.test == "TEST07":
            remarks = [*remarks, "the official script was given the score that was found here"]
    passed = all(check.passed for check in checks)
    return Compliance(test=attempt.test, passed=passed, checks=checks, verified_unix=time.time(), official=said, remarks=remarks)


def _test06(attempt: Attempt, audit: Audit) -> tuple[list[Check], list[str]]:
    n, counts, ends, firsts = 0, list[int](), list[int](), list[int]()
    timed = attempt.scenario != "Offline"
    for logged in AccuracyLog(attempt.folder):
        n += 1
        if logged.token_count != logged.n:
            counts.append(logged.seq)
        if _ends_twice(logged, attempt.eos):
            ends.append(logged.seq)
        if timed and not (logged.first and logged.tokens.startswith(logged.first[:4])):
            firsts.append(logged.seq)
    checks = [
        Check("samples logged", n >= audit.min_queries, f"{n:,d} answers were logged, {audit.min_queries} are needed"),
        _none_of("end of text", ends, n, f"end with at most one end-of-text token (id {attempt.eos})"),
        _none_of("token counts", counts, n, "have as many tokens as they say"),
    ]
    if timed:
        checks.insert(1, _none_of("first token", firsts, n, "begin with the first token that LoadGen was told of"))
        return checks, []
    return checks, ["Offline has no first tokens: that check does not apply"]


def _ends_twice(logged: Logged, eos: int) -> bool:
    """An answer of nothing but two of them is let pass, as the official script lets it."""
    ids = logged.ids
    return len(ids) > 2 and int(ids[-1]) == eos and int(ids[-2]) == eos


def _none_of(name: str, wrong: list[int], n: int, words: str) -> Check:
    if not wrong:
        return Check(name, n > 0, f"all {n:,d} answers {words}")
    shown = ", ".join(map(str, wrong[:_SHOWN])) + (", …" if len(wrong) > _SHOWN else "")
    return Check(name, False, f"{n - len(wrong):,d} of {n:,d} answers {words}; not those with seq_id {shown}")


def _test09(attempt: Attempt, audit: Audit) -> list[Check]:
    assert audit.tokens is not None
    tokens, asked = 0, Counter[int]()
    for logged in AccuracyLog(attempt.folder):
        tokens += logged.n
        asked[logged.index] += 1
    n, (least, most) = asked.total(), audit.tokens
    mean = tokens / n if n else 0.0
    text = f"{mean:,.2f} over {n:,d} samples; {least:g} to {most:g} are allowed"
    return [_coverage(attempt, audit, asked), Check("mean output tokens", least <= mean <= most, text)]


def _test07(attempt: Attempt, audit: Audit, work: Work) -> tuple[list[Check], list[str], float | None]:
    assert audit.least_accuracy is not None
    asked = Counter(logged.index for logged in AccuracyLog(attempt.folder))
    checks = [_coverage(attempt, audit, asked)]
    if not checks[0].passed:
        return checks, ["not scored, since not every sample was asked once"], None
    counted = count(work)
    score = counted.exact_match(attempt.mlperf_name)
    text = f"exact_match {score:.3f} over {counted.n:,d} samples, {audit.least_accuracy:g} is needed"
    return [*checks, Check("accuracy", score >= audit.least_accuracy, text)], counted.remarks, score


def _coverage(attempt: Attempt, audit: Audit, asked: Counter[int]) -> Check:
    """By qsl_idx, against the number of samples that LoadGen says it had."""
    effective = detail_log.read(attempt.folder).keys.get("effective_performance_sample_count")
    wanted = effective if isinstance(effective, int) and effective > 0 else audit.performance_samples
    twice = sum(times > 1 for times in asked.values())
    text = f"{len(asked):,d} of {wanted:,d} samples of the dataset were asked, {twice:,d} of them more than once"
    return Check("every sample once", len(asked) == wanted and not twice, text)
