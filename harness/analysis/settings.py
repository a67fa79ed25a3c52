"""In which settings the sides of a comparison are not alike: spec, LoadGen, versions, what replicas told of themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from harness.analysis.shape import flat
from harness.analysis.sides import Side
from harness.records.errors import RecordError
from harness.records.fleetfile import read_fleet
from harness.records.layout import RunFolder


class ConfigRow(msgspec.Struct):
    """A setting in which the sides are not alike; None where a side does not say."""

    group: Literal["spec", "LoadGen", "versions", "engine"]
    field: str
    values: list[str | None]


#: Which run it was, and where it was put, is no setting.
_NOT_COMPARED: Final = ("name", "record.dir")
_EFFECTIVE, _REQUESTED = "effective_", "requested_"


def config_of(sides: Sequence[Side]) -> Iterator[ConfigRow]:
    yield from _differing("spec", [said(side.run.spec) for side in sides])
    yield from _differing("LoadGen", [_settings(side.attempt.settings_effective) for side in sides])
    yield from _differing("versions", [_versions(side) for side in sides])
    yield from _differing("engine", [_engine_facts(side.folder) for side in sides])


def _differing(group: Literal["spec", "LoadGen", "versions", "engine"], told: Sequence[Mapping[str, str]]) -> Iterator[ConfigRow]:
    """A side that says nothing at all of a group (an imported one) does not differ in every line of it."""
    speaking = [one for one in told if one]
    if len(speaking) < 2:
        return
    for field in dict.fromkeys(name for one in speaking for name in one):
        if field not in _NOT_COMPARED and len({one.get(field) for one in speaking}) > 1:
            yield ConfigRow(group, field, [one.get(field) for one in told])


def said(spec: Any) -> dict[str, str]:
    """Values as people write them."""
    return {
        name: "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
        for name, value in flat(spec).items()
    }


def _versions(side: Side) -> dict[str, str]:
    return side.run.versions | ({"head's host": side.run.host} if side.run.host else {})


def _settings(effective: Mapping[str, Any]) -> dict[str, str]:
    """As in effect; as requested only where the log has no more."""
    known = {name.removeprefix(_EFFECTIVE): str(value) for name, value in effective.items() if name.startswith(_EFFECTIVE)}
    asked = {name.removeprefix(_REQUESTED): str(value) for name, value in effective.items() if name.startswith(_REQUESTED)}
    same = {"server_target_qps": "target_qps", "server_target_latency_ns": "target_latency_ns"}
    return known | {name: value for name, value in asked.items() if name not in known and same.get(name) not in known}


def _engine_facts(folder: str) -> dict[str, str]:
    """What a run's replicas told of themselves, as of their last lives; where they differ, every value with how many have it."""
    try:
        fleet = read_fleet(RunFolder(Path(folder)).fleet_json)
    except RecordError:
        return {}
    facts: dict[str, Counter[str]] = {}
    for lives in fleet.slots.values() if fleet is not None else ():
        number = lives[-1].facts if lives else None
        if fleet is not None and number is not None and 0 <= number < len(fleet.facts):
            for name, value in fleet.facts[number].items():
                facts.setdefault(name, Counter())[value] += 1
    return {
        name: next(iter(values)) if len(values) == 1 else ", ".join(f"{value} ({n:,})" for value, n in values.most_common())
        for name, values in facts.items()
    }
