"""Attempts sorted into the places of a submission, and everything that speaks against the set, at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.mlperf.rules import MODELS
from harness.mlperf.submission.candidates import Candidate, Place, came_to_an_end
from harness.mlperf.submission.checks import reasons_against
from harness.mlperf.submission.demands import ACCURACY, DEMANDS, INTERACTIVE, OFFLINE, PERFORMANCE, SERVER
from harness.mlperf.submission.system import SystemDescription, measurement_problems, problems_of
from harness.records.clusterlog import last_view

Division = Literal["closed", "open"]

#: What the open division does without, in words for the command's help and for the README.
RELAXED = (
    "the accuracy gate and the range of tokens per sample, compliance tests, and that both Offline and Server or Interactive "
    "are there"
)


@dataclass
class Unit:
    """One scenario of one benchmark."""

    benchmark: str
    folder: str
    parts: dict[str, Candidate] = field(default_factory=dict)


@dataclass
class Plan:
    submitter: str
    division: Division
    system: SystemDescription
    units: list[Unit] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)  # why the set cannot be submitted
    left_out: list[str] = field(default_factory=list)  # attempts, and why they are not part of it

    @property
    def submittable(self) -> bool:
        return not self.reasons


def make_plan(candidates: Sequence[Candidate], system: SystemDescription, submitter: str, division: Division) -> Plan:
    """Reads LoadGen's logs, the records' samples and, for its hash, every accuracy log."""
    plan = Plan(submitter, division, system)
    for place, chosen in _placed(candidates, plan):
        unit = next((unit for unit in plan.units if (unit.benchmark, unit.folder) == (place.benchmark, place.folder)), None)
        if unit is None:
            plan.units.append(unit := Unit(place.benchmark, place.folder))
        unit.parts[place.part] = chosen
        plan.reasons += [
            f"{chosen.name} ({place}): {reason}" for reason in reasons_against(chosen, place, closed=division == "closed")
        ]
    if not plan.units:
        plan.reasons.append("none of the attempts has a place in a submission")
        plan.reasons += [
            f"{candidate.name}: its engine is synthetic: no hardware was measured"
            for candidate in candidates
            if candidate.run.synthetic
        ]
    plan.reasons += _missing(plan)
    plan.reasons += [f"{system.path.name}: {problem}" for problem in problems_of(system, submitter, division)]
    for benchmark in dict.fromkeys(unit.benchmark for unit in plan.units):
        plan.reasons += [f"{system.path.name}: {problem}" for problem in measurement_problems(system, benchmark)]
    plan.reasons += _not_this_system(plan)
    return plan


def _placed(candidates: Sequence[Candidate], plan: Plan) -> Iterator[tuple[Place, Candidate]]:
    """One for each place: of several the one that is VALID."""
    by_place: dict[Place, list[Candidate]] = {}
    for candidate in candidates:
        place = candidate.place
        if place is None:
            plan.left_out.append(f"{candidate.name}: {_why_nowhere(candidate)}")
        elif place.benchmark not in DEMANDS or candidate.mlperf_name not in MODELS:
            plan.reasons.append(
                f"{candidate.name}: {candidate.mlperf_name} has no rules here; known are {', '.join(sorted(DEMANDS))}"
            )
        elif place.folder == OFFLINE and candidate.mlperf_name != place.benchmark:
            plan.reasons.append(f"{candidate.name}: Offline is run as {place.benchmark}, not as {candidate.mlperf_name}")
        elif not came_to_an_end(candidate) and len(candidates) > 1:
            plan.left_out.append(f"{candidate.name}: {candidate.attempt.verdict}")
        else:
            by_place.setdefault(place, []).append(candidate)
    for place in sorted(by_place, key=_order):
        rivals = by_place[place]
        valid = [candidate for candidate in rivals if candidate.attempt.verdict == "VALID"]
        chosen = (valid or rivals)[-1]
        if len(valid) > 1:
            names = ", ".join(candidate.name for candidate in valid)
            plan.reasons.append(f"{place}: {len(valid)} attempts are VALID ({names}); name the one that is meant as RUN:N")
        plan.left_out += [f"{other.name}: {chosen.name} takes its place ({place})" for other in rivals if other is not chosen]
        yield place, chosen


def _order(place: Place) -> tuple[str, int, int, str]:
    return (
        place.benchmark,
        (OFFLINE, SERVER, INTERACTIVE).index(place.folder),
        (PERFORMANCE, ACCURACY).index(place.part) if place.part in (PERFORMANCE, ACCURACY) else 2,
        place.part,
    )


def _why_nowhere(candidate: Candidate) -> str:
    if candidate.attempt.kind == "explore":
        return "an exploration is no result"
    if not candidate.mlperf_name:
        return "it ran without model.mlperf_name (as in -s model.mlperf_name=gpt-oss-120b), so without the rules of a model"
    return "a compliance attempt that says of no known test" if candidate.attempt.kind == "compliance" else candidate.attempt.kind


def _missing(plan: Plan) -> list[str]:
    """Parts of a complete submission that no attempt takes."""
    found = []
    for benchmark in dict.fromkeys(unit.benchmark for unit in plan.units):
        units = [unit for unit in plan.units if unit.benchmark == benchmark]
        there = {unit.folder for unit in units}
        if plan.division == "closed":
            if OFFLINE not in there:
                found.append(f"{benchmark}: Offline is missing")
            if not there & {SERVER, INTERACTIVE}:
                found.append(f"{benchmark}: Server or Interactive is missing, one of both is wanted")
        tests = DEMANDS[benchmark].tests if plan.division == "closed" else ()
        for unit in units:
            found += [
                f"{benchmark} {unit.folder}: {part} is missing"
                for part in (PERFORMANCE, ACCURACY, *tests)
                if part not in unit.parts
            ]
    return found


def _not_this_system(plan: Plan) -> list[str]:
    """Where a description contradicts what a run on a cluster used. Nodes of a local run are processes of one machine."""
    found, file = [], plan.system.path.name
    nodes_said = plan.system.values.get("number_of_nodes", "")
    per_node_said = plan.system.values.get("accelerators_per_node", "")
    for candidate in (candidate for unit in plan.units for candidate in unit.parts.values()):
        fleet = candidate.table("fleet")
        if candidate.table("cluster").get("kind") == "kubernetes" and nodes_said.isdigit():
            view = last_view(candidate.run_folder.cluster)
            nodes = (view.wanted if view else 0) or fleet.get("nodes")
            if int(nodes_said) != nodes:
                found.append(f"{file}: number_of_nodes is {nodes_said}, {candidate.run_folder.name} was served by {nodes}")
        replicas = fleet.get("replicas_per_node")
        used = replicas * _devices(candidate.table("fleet", "layout")) if isinstance(replicas, int) else 0
        if fleet.get("engine") == "vllm" and per_node_said.isdigit() and used > int(per_node_said):
            found.append(f"{file}: accelerators_per_node is {per_node_said}, {candidate.run_folder.name} used {used}")
    return list(dict.fromkeys(found))


def _devices(layout: dict[str, object]) -> int:
    """Of one replica, as LayoutSpec counts them."""
    if layout.get("device") == "cpu":
        return 0
    count = 1
    for name in ("tp", "pp", "dp"):
        value = layout.get(name)
        count *= value if isinstance(value, int) else 1
    return count
