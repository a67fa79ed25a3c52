"""`paceline score` and `paceline verify`: what the answers of an attempt are worth, after its run."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from console.cli.errors import NOT_VALID, OK, BadInput
from console.cli.found import any_run
from console.cli.output import note, number, say, say_json, table
from console.cli.waiting import ended_in_order
from harness.records.layout import RunFolder, at_home
from harness.records.lock import FolderTaken
from harness.records.runfile import AttemptRecord, RunFile, read_run
from harness.records.runfile import plain as numpyless

if TYPE_CHECKING:
    from harness.mlperf.accuracy.score import Work
    from harness.mlperf.scores import AccuracyScore, Compliance

Run = Annotated[str | None, Parameter(help="The run, or one of its attempts as RUN:N (its last that fits)")]
Dataset = Annotated[
    str | None, Parameter(help="File with the right answers: .parquet, .pkl or .jsonl with dataset and ground_truth (the run's)")
]
Tokenizer = Annotated[str | None, Parameter(help="The model's tokenizer.json or its folder (dataset.tokenizer, else model.path)")]
Scorers = Annotated[
    list[str],
    Parameter(name="--scorer", negative="", help="NAME=COMMAND for a subset, or all=COMMAND: {answers} {out} {log} {dataset}"),
]
Deadline = Annotated[float, Parameter(name="--deadline", help="Seconds that a command may take (3600)")]
AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object")]


def score(
    run: Run = None,
    /,
    *,
    dataset: Dataset = None,
    tokenizer: Tokenizer = None,
    scorers: Scorers = [],  # noqa: B006 - cyclopts reads it, nobody writes it
    deadline_s: Deadline = 3600.0,
    json: AsJson = False,
) -> int:
    """Score the answers of an accuracy attempt against the right ones: exact_match, by subset, and the model's gate.

    GPQA, MMLU-Pro, AIME and MATH are scored here; code (LiveCodeBench) and official scorers run as the command that --scorer
    names, which reads {answers} and writes {out} or prints a line like 'exact_match': 61.2. The score becomes part of the
    attempt's record and of its verdict. Exit code 1: under the gate.
    """
    from harness.mlperf import judging
    from harness.mlperf.accuracy.score import ANSWERS
    from harness.mlperf.accuracy.score import score as scored
    from harness.mlperf.scores import write_score

    folder, attempt, file = _meant(run, "accuracy")
    spec = _Spec.of(folder, attempt, file)
    work = _work(folder, attempt, spec, dataset, tokenizer, scorers, deadline_s)
    with _alone(work.attempt), ended_in_order():
        found = scored(work, spec.mlperf_name)
        write_score(work.attempt, found)
    why = f"{found.metric} {found.score:.4f}"
    verdict = _into_verdict(judging.judge_ended, folder, attempt, "attempt.scored", why, score=found.score, gate=found.gate)
    answers = work.attempt / ANSWERS
    if json:
        say_json(_plain(found) | {"run": folder.name, "attempt": attempt.number, "verdict": verdict, "answers": str(answers)})
    else:
        _say_score(found)
        say(f"\n{folder.name}, attempt {attempt.number}: {verdict}\nanswers: {answers}")
    return NOT_VALID if found.passed is False else OK


def verify(
    run: Run = None,
    /,
    *,
    official: Annotated[
        str | None, Parameter(help="Folder of mlcommons/inference's compliance scripts: they are run too, and must agree")
    ] = None,
    eos: Annotated[int | None, Parameter(help="TEST06: the model's end-of-text token (model.eos_token_id)")] = None,
    dataset: Dataset = None,
    tokenizer: Tokenizer = None,
    scorers: Scorers = [],  # noqa: B006 - cyclopts reads it, nobody writes it
    deadline_s: Deadline = 3600.0,
    json: AsJson = False,
) -> int:
    """Verify a compliance attempt: TEST06, TEST07 or TEST09, by its log. TEST07 scores its answers, as `score` does.

    TEST06 and TEST09 are verified as they end; ask again with --official, or with another --eos. Exit code 1: not passed.
    """
    from harness.mlperf import judging
    from harness.mlperf.compliance.audits import Attempt
    from harness.mlperf.compliance.verify import BY_THE_LOG
    from harness.mlperf.compliance.verify import verify as verified
    from harness.mlperf.scores import write_compliance

    folder, attempt, file = _meant(run, "compliance")
    spec = _Spec.of(folder, attempt, file)
    test = attempt.test or spec.test
    work = None
    if test not in BY_THE_LOG:
        work = _work(folder, attempt, spec, dataset, tokenizer, scorers, deadline_s)
    elif dataset or tokenizer or scorers:
        raise BadInput(f"verify: {test} is verified by its log alone; --dataset, --tokenizer and --scorer go with TEST07")
    if eos is not None and test != "TEST06":
        raise BadInput(f"verify: --eos goes with TEST06; attempt {attempt.number} is {test}")
    place = folder.attempt(attempt.number)
    audited = Attempt(place, test, attempt.scenario, spec.eos if eos is None else eos, spec.mlperf_name)
    with _alone(place), ended_in_order():
        found = verified(audited, work, None if official is None else at_home(official))
        write_compliance(place, found)
    why = f"{found.test} {'passed' if found.passed else 'not passed'}"
    verdict = _into_verdict(judging.judge_ended, folder, attempt, "attempt.verified", why, passed=found.passed)
    if json:
        say_json(_plain(found) | {"run": folder.name, "attempt": attempt.number, "verdict": verdict})
    else:
        _say_compliance(found)
        say(f"\n{folder.name}, attempt {attempt.number}: {verdict}")
    return OK if found.passed else NOT_VALID


def _into_verdict(judge: Any, folder: RunFolder, attempt: AttemptRecord, what: str, why: str, **data: Any) -> str:
    """The attempt's verdict now. While a head has the run it is the head's to change: it does so at the run's end."""
    try:
        return str(judge(folder, attempt.number, what, why, **data).verdict)
    except FolderTaken:
        note(f"{folder.name} is still going on: the verdict of attempt {attempt.number} takes this up when it ends")
        return attempt.verdict


@contextlib.contextmanager
def _alone(attempt: Path) -> Iterator[None]:
    """Two at once would read each other's answers and scores. Raises BadInput."""
    if not attempt.is_dir():
        yield  # what is missing is told by who looks for it
        return
    handle = os.open(attempt, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise BadInput(f"{attempt}: another process scores or verifies it; try again when that has ended") from None
    finally:
        os.close(handle)


# --- what is meant ------------------------------------------------------------------------------------------


def _meant(which: str | None, kind: str) -> tuple[RunFolder, AttemptRecord, RunFile]:
    """The attempt that is named, or the last of that kind that has ended."""
    name, _, digits = (which or "").rpartition(":")
    wanted = int(digits) if name and digits.isdecimal() and len(digits) < 10 else None
    folder = any_run(name if wanted is not None else which)
    file = read_run(folder.path)
    there = ", ".join(f"{one.number} ({one.kind})" for one in file.attempts) or "none"
    if wanted is not None:
        attempt = next((one for one in file.attempts if one.number == wanted), None)
        if attempt is None:
            raise BadInput(f"{folder.name} has no attempt {wanted}; its attempts are {there}")
        if attempt.kind != kind:
            raise BadInput(f"attempt {wanted} of {folder.name} is of kind {attempt.kind}, not {kind}; its attempts are {there}")
    else:
        attempt = next((one for one in reversed(file.attempts) if one.kind == kind), None)
        if attempt is None:
            raise BadInput(f"{folder.name} has no {kind} attempt; its attempts are {there}")
    if attempt.state != "ENDED":
        raise BadInput(f"attempt {attempt.number} of {folder.name} has not ended: its answers are not all there")
    return folder, attempt, file


class _Spec:
    """What scoring needs of an attempt's specification. Of an imported run it may be next to nothing."""

    def __init__(self, raw: dict[str, Any], base: Path) -> None:
        self._raw, self._base = raw, base
        self.mlperf_name: str | None = self._text("model", "mlperf_name") or None
        self.eos = int(self._table("model").get("eos_token_id") or 2)
        self.test = self._text("load", "test")
        self.kind = self._text("dataset", "kind")
        self.samples = self._table("dataset").get("samples")

    @classmethod
    def of(cls, folder: RunFolder, attempt: AttemptRecord, file: RunFile) -> _Spec:
        """The attempt's own, which its driver was given, with the folder that its paths start from; else the run's."""
        import msgspec

        try:
            told = msgspec.json.decode((folder.attempt(attempt.number) / "driver.json").read_bytes())
            return cls(msgspec.json.decode(told["spec"]), Path(told["dataset_base"]))
        except (OSError, msgspec.DecodeError, KeyError, TypeError):
            return cls(file.spec, Path())

    def _table(self, name: str) -> dict[str, Any]:
        found = self._raw.get(name)
        return found if isinstance(found, dict) else {}

    def _text(self, table: str, name: str) -> str:
        return str(self._table(table).get(name) or "")

    def file(self, table: str, name: str) -> Path | None:
        found = self._text(table, name)
        return self._base / at_home(found) if found else None


def _work(
    folder: RunFolder,
    attempt: AttemptRecord,
    spec: _Spec,
    dataset: str | None,
    tokenizer: str | None,
    scorers: list[str],
    deadline_s: float,
) -> Work:
    from harness.mlperf.accuracy.outside import Scorer
    from harness.mlperf.accuracy.score import Work
    from harness.mlperf.accuracy.texts import Texts
    from harness.mlperf.accuracy.truths import read_truths

    if not 0 < deadline_s <= 604_800:
        raise BadInput(f"--deadline {deadline_s:g} must be more than 0 and at most 604800 seconds")
    outside = [Scorer.parse(text) for text in scorers]
    path = at_home(dataset) if dataset else spec.file("dataset", "path")
    if path is None:
        what = "made-up prompts, which have no right answers" if spec.kind == "lengths" else "no dataset that is known"
        raise BadInput(f"{folder.name} ran over {what}: --dataset names a file with the fields dataset and ground_truth")
    words = at_home(tokenizer) if tokenizer else spec.file("dataset", "tokenizer") or spec.file("model", "path")
    if words is None:
        raise BadInput(f"{folder.name} names no tokenizer: --tokenizer names the model's tokenizer.json or its folder")
    samples = spec.samples if isinstance(spec.samples, int) and spec.kind != "lengths" else None
    truths = read_truths(path, "" if dataset else spec.kind, samples)
    place = folder.attempt(attempt.number)
    return Work(place, truths, Texts(words), outside, deadline_s, functools.partial(_told, folder.name))


def _told(run: str, text: str) -> None:
    note(f"{run}: {text}")


# --- what is said -------------------------------------------------------------------------------------------


def _plain(found: AccuracyScore | Compliance) -> dict[str, Any]:
    import msgspec

    told = msgspec.to_builtins(found, enc_hook=numpyless)
    assert isinstance(told, dict)
    return told


def _say_score(found: AccuracyScore) -> None:
    rows = [
        [one.name, number(one.n), number(one.correct, 0), f"{one.score:.2f} %", number(one.unparsed), one.how]
        for one in found.subsets
    ]
    say(table(["subset", "samples", "correct", "score", "no answer", "how"], rows, right=(1, 2, 3, 4)))
    outcome = {True: "passed", False: "NOT passed", None: "no gate is known for this model"}[found.passed]
    gate = "" if found.gate is None else f", gate {found.gate:g}"
    say(f"\n{found.metric} {found.score:.4f} over {found.n:,d} samples{gate}: {outcome}")
    say(f"tokens per sample {found.tokens_per_sample:,.2f}")
    for remark in found.remarks:
        say(f"- {remark}")


def _say_compliance(found: Compliance) -> None:
    say(table(["check", "", "found"], [[check.name, "pass" if check.passed else "FAIL", check.text] for check in found.checks]))
    say(f"\n{found.test}: {'passed' if found.passed else 'NOT passed'}")
    if found.official:
        say(f"official script: {found.official}")
    for remark in found.remarks:
        say(f"- {remark}")
