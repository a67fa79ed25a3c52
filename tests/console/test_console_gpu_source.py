"""The Metrics screen before anything is asked: where GPU metrics come from, whose they are, and what is missing."""

from __future__ import annotations

import pytest
from console_helpers import AppMaker, text_of, wait_for
from gpu_kit import changed, store_of, with_gpus

from console.widgets.gpu_source import source_facts
from harness.wire.gpus import GpuView


def told(**fields: object) -> dict[str, tuple[str, str]]:
    """Label → value and meaning; a label that is not repeated keeps its first value."""
    fleet = with_gpus()
    store = store_of(fleet)
    assert store.gpus.view is not None
    store.apply(changed(store.gpus.view, **fields))
    found: dict[str, tuple[str, str]] = {}
    for label, value, meaning in source_facts(store):
        found.setdefault(label, (value, meaning))
    return found


def test_source_roles_and_alerts_are_told() -> None:
    facts = told()
    assert facts["state"] == ("ok", "READY")
    assert "Prometheus prom.example:9090 (amd-dme), read every 5 s" in facts["source"][0]
    assert facts["GPUs"] == ("512 of 512 of the fleet have series", "")
    assert {"power", "temp"} <= set(facts["roles"][0].split())
    assert facts["missing"][0].startswith("membw: ")
    assert "firing" in facts["alert rules"][0]


def test_gpus_without_a_partner_are_counted_on_both_sides_with_examples() -> None:
    facts = told(matched=510, gpus_unmatched=2, series_unmatched=8, unmatched=["node003/gpu1 (GPU 1 on n3) has no series"])
    assert facts["GPUs"] == ("510 of 512 of the fleet have series", "SLOW")
    assert facts[""] == ("8 of the source's are no replica's", "")


@pytest.mark.parametrize(("state", "looks"), [("down", "LOST"), ("stale", "SLOW"), ("partial", "SLOW")])
def test_what_is_wrong_stands_beside_the_state(state: str, looks: str) -> None:
    facts = told(state=state, problem="nobody answers at prom.example:9090", warnings=["partial data"])
    assert facts["state"] == (f"{state}: nobody answers at prom.example:9090", looks)
    assert facts["warning"] == ("partial data", "SLOW")


def test_without_a_source_only_the_reason_is_told() -> None:
    store = store_of(with_gpus())
    store.apply(GpuView(1.0, "none", problem="set metrics.gpu.url"))
    assert source_facts(store) == [("state", "none: set metrics.gpu.url", "")]


async def test_it_makes_room_for_the_answer_to_a_query(make_app: AppMaker) -> None:
    fleet = with_gpus()
    app = make_app(fleet)
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_for(lambda: bool(app.store.slots) and app.store.gpus.view is not None)
        await pilot.press("6")
        await wait_for(lambda: bool(app.screen.query("#source-facts")))
        facts = app.screen.query_one("#source-facts")
        await wait_for(lambda: "512 of 512" in text_of(facts))
        assert facts.display
        app.screen.put("up")  # type: ignore[attr-defined]
        await wait_for(lambda: not facts.display)
