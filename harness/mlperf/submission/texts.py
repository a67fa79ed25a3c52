"""What a submission says in words: a README for each scenario, and placeholders that name what only the submitter can write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from harness.mlperf.scores import AccuracyScore, Compliance
from harness.mlperf.submission.candidates import Candidate
from harness.mlperf.submission.demands import INTERACTIVE, PERFORMANCE
from harness.mlperf.submission.plan import RELAXED, Plan, Unit

_MARK = "NOT SUBMITTABLE"
#: Lines that the official checker looks for in verify_accuracy.txt of TEST06, and which of our checks decides each.
_TEST06_LINES = (
    ("First token check pass", "first token"),
    ("EOS check pass", "end of text"),
    ("Sample length check pass", "token counts"),
)


def not_submittable(plan: Plan) -> str:
    reasons = "\n".join(f"- {reason}" for reason in plan.reasons)
    return (
        f"# {_MARK}\n\nThis tree was written although it must not be submitted. What speaks against it:\n\n{reasons}\n\n"
        "Remove none of this: export again once the reasons are gone.\n"
    )


def readme(plan: Plan, unit: Unit) -> str:
    """Of one scenario's folder."""
    parts = [f"# {unit.benchmark}, {unit.folder}, {plan.division} division\n"]
    if not plan.submittable:
        parts.append(f"**{_MARK}.** NOT_SUBMITTABLE.md at the top of the tree has the reasons.\n")
    parts.append("## How it was run\n\n" + "\n".join(f"- {line}" for line in _how(unit)) + "\n")
    if unit.folder == INTERACTIVE:
        parts.append(f"LoadGen ran scenario Server as model {unit.benchmark}-interactive, whose limits were in effect.\n")
    parts.append("## Parts\n\n" + _table(unit) + "\n")
    parts.append("## Samples issued again\n\n" + "\n".join(_issued_again(unit)) + "\n")
    parts.append("## Acts during the runs\n\n" + "\n".join(_acts(unit)) + "\n")
    if plan.division == "open":
        parts.append(f"## Open division\n\nNot asked of this export: {RELAXED}.\n")
    parts.append("## To reproduce\n\n" + _reproduce(unit, plan) + "\n")
    return "\n".join(parts)


def _how(unit: Unit) -> Iterator[str]:
    """From the performance attempt, or what there is."""
    candidate = unit.parts.get(PERFORMANCE) or next(iter(unit.parts.values()))
    model, fleet, load = candidate.table("model"), candidate.table("fleet"), candidate.table("load")
    layout, arguments = candidate.table("fleet", "layout"), candidate.table("fleet", "engine_args")
    yield f"model {model.get('name', 'not recorded')}, LoadGen model name {candidate.mlperf_name}"
    yield (
        f"engine {fleet.get('engine', 'not recorded')}, {fleet.get('nodes', '?')} nodes x "
        f"{fleet.get('replicas_per_node', '?')} replicas, "
        f"each tp {layout.get('tp', 1)} x pp {layout.get('pp', 1)} x dp {layout.get('dp', 1)}"
        + (", expert parallel" if layout.get("ep") else "")
    )
    roles = fleet.get("roles")
    if isinstance(roles, list) and roles != ["both"]:
        yield "prefill and decode by different replicas: " + ", ".join(f"{n} {role}" for role, n in Counter(roles).items())
    yield f"requests are balanced by {fleet.get('balance', 'least_outstanding')}; one LoadGen in the head issues all of them"
    if arguments:
        yield "engine arguments: " + ", ".join(f"{name}={_public(name, arguments[name])}" for name in sorted(arguments))
    sampling = candidate.table("sampling")
    yield (
        f"sampling: temperature {sampling.get('temperature', 0.0)}, top_p {sampling.get('top_p', 1.0)}, top_k "
        f"{sampling.get('top_k', 0)}; at most {load.get('max_output_tokens', '?')} output tokens"
    )
    versions = dict(candidate.run.versions)
    if loadgen := candidate.log.keys.get("loadgen_version"):
        versions["LoadGen (its log)"] = str(loadgen)
    yield "versions of the head: " + (", ".join(f"{name} {value}" for name, value in versions.items()) or "not recorded")


def _public(name: str, value: Any) -> str:
    """As the engine's own facts tell them: of headers and variables the names alone, of addresses their number."""
    if name in ("headers", "env") and isinstance(value, dict):
        return str(sorted(value))
    return str(len(value)) if name == "base_urls" and isinstance(value, list) else repr(value)


def _table(unit: Unit) -> str:
    rows = ["| part | record | target QPS | verdict | result |", "|---|---|---|---|---|"]
    for part, candidate in unit.parts.items():
        attempt = candidate.attempt
        verdict = attempt.verdict + (f", ACTS {attempt.acts}" if attempt.acts else "")
        rows.append(f"| {part} | {candidate.name} | {attempt.target_qps:g} | {verdict} | {_result(part, candidate)} |")
    return "\n".join(rows)


def _result(part: str, candidate: Candidate) -> str:
    if candidate.score is not None:
        return f"exact_match {candidate.score.score:.4f} over {candidate.score.n} samples"
    if candidate.compliance is not None:
        return "passed" if candidate.compliance.passed else "not passed"
    if part != PERFORMANCE:
        return ""
    said = candidate.log.result()
    told = [f"{said.samples_per_s:g} samples/s" if said.samples_per_s is not None else ""]
    told.append(f"{said.tokens_per_s:g} tokens/s" if said.tokens_per_s is not None else "")
    for name, figures in (("TTFT", candidate.attempt.ttft_ms), ("TPOT", candidate.attempt.tpot_ms)):
        p99_ms = figures.get("p99")
        told.append(f"{name} p99 {p99_ms:.6g} ms by the record's samples" if p99_ms is not None else "")
    return ", ".join(filter(None, told)) + " (rates by LoadGen's log)"


def _issued_again(unit: Unit) -> Iterator[str]:
    yield (
        "A sample whose replica was lost, or that went past its deadline, is sent to another replica. Its times count from the "
        "scheduled time, so the loss is in its latency; LoadGen sees one completion. Times that this happened:\n"
    )
    for part, candidate in unit.parts.items():
        totals = candidate.attempt.totals
        yield f"- {part}: {totals.get('redispatched', 0)} of {totals.get('issued', 0)} samples"


def _acts(unit: Unit) -> Iterator[str]:
    lines = [
        f"- {part}, {entry.unix - candidate.attempt.started_unix:.0f} s after its start: {entry.what.removeprefix('act.')} "
        f"{entry.subject} by {'an operator' if entry.who.startswith('operator') else entry.who}"
        + (f": {entry.why}" if entry.why else "")
        for part, candidate in unit.parts.items()
        for entry in candidate.acts()
    ]
    yield from lines or ["None: no operator and no policy touched them."]


def _reproduce(unit: Unit, plan: Plan) -> str:
    return (
        f"`user.conf` in this folder is the one that was in effect. ../../../../src/{unit.benchmark}/README.md says what was "
        f"started, and ../../../../docs/ how weights were prepared; {plan.submitter} fills both in."
    )


def accuracy_txt(score: AccuracyScore, sha256: str) -> str:
    """The first line is what the official checker reads; the last what the truncation tool would have written."""
    said = f"{{'exact_match': {score.score!r}, 'tokens_per_sample': {score.tokens_per_sample!r}, 'num_samples': {score.n}}}"
    # Of a scorer's command only that it was one: its words are of the submitter's machine, and not for all to read.
    subsets = [f"{one.name}: {one.score:.4f} % of {one.n} ({one.how.partition(':')[0]})" for one in score.subsets]
    return "\n".join([said, *subsets, f"hash={sha256}"]) + "\n"


def verify_txt(found: Compliance, scenario: str) -> str:
    """In the words by which the official checker judges each test, our own checks below, the official script's at the end."""
    lines: list[str] = []
    if found.test == "TEST06":
        decided = {check.name: check.passed for check in found.checks}
        for said, name in _TEST06_LINES:
            skipped = name == "first token" and scenario == "Offline"  # which has no first tokens
            lines.append(f"{said}: {'Skipped' if skipped else decided.get(name, False)}")
    lines += [f"{check.name}: {'pass' if check.passed else 'FAIL'}: {check.text}" for check in found.checks]
    lines.append("TEST PASS" if found.passed else "TEST FAIL")
    if found.official:
        lines += ["", "The official script said:", *found.official.splitlines()]
    return "\n".join(lines) + "\n"


def source_readme(benchmark: str, candidates: Sequence[Candidate]) -> str:
    names = sorted({candidate.run_folder.name for candidate in candidates})
    return (
        f"# {benchmark}: source\n\nTO BE FILLED IN by the submitter:\n\n"
        "- the source, or a public address with its revision, of everything that ran: harness (Paceline) and its version, "
        "engine, kernels, patches, and the container images with their digests\n"
        "- the commands that prepare model and dataset, with the revisions of both\n"
        "- the commands that start the runs\n\n"
        f"The runs of this submission: {', '.join(names)}. spec.json of each record has every "
        "setting.\n"
    )


def calibration_md(units: Sequence[Unit]) -> str:
    benchmarks = ", ".join(dict.fromkeys(unit.benchmark for unit in units))
    return (
        f"# Calibration and weights ({benchmarks})\n\nTO BE FILLED IN by the submitter:\n\n"
        "- which weights were started from, at which revision\n"
        "- how they were quantized or transformed, with which tool and calibration data; or that they were not\n"
        "- that nothing was retrained\n"
    )


def measurements(said: dict[str, str]) -> dict[str, Any]:
    return dict(sorted(said.items()))
