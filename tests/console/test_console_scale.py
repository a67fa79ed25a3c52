"""`:scale N`: asked first, foretold, refused in words, and done by `paceline scale` with the user's rights."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from acting_helpers import app_on, complaint, facts, feed_of, opened, press, say_yes, sent, told
from cluster_helpers import cluster_of, clustered, store_of
from console_helpers import settle
from recorded_kit import a_spec, ended_run
from textual.widgets import Button, Input

from console.commands import completions, parse
from console.feeds import scaling
from console.feeds.head import HeadFeed
from console.feeds.scripted import ScriptedFleet
from console.screens.dialogs import Dialog
from console.screens.dialogs.fields import Tick
from console.screens.scale_acts import judged_nodes, why_no_scale
from harness.records.layout import RunFolder


def test_it_is_in_the_list_of_commands_and_takes_a_number() -> None:
    typed = parse(":scale 48")
    assert (typed.action.id, typed.argument, typed.action.acts) == ("scale", "48", True)
    assert "scale" in completions("sca", lambda takes: [])


@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_what_goes_is_told_before_it_goes_and_the_size_is_changed_after_a_yes(size: tuple[int, int]) -> None:
    app = app_on(clustered())
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app)
        await app.run_named(parse("scale 62").action, "62")
        await opened(pilot)
        assert facts(app)["now"].startswith("64 of at most 64 nodes")
        assert "paceline scale" in facts(app)["rights"]
        assert "64 → 62 nodes: node062, node063 go with 16 serving replicas" in complaint(app)
        assert "in flight finish first" in complaint(app)
        assert not app.screen.query_one("#force", Tick).display
        await say_yes(pilot)
        assert sent(app) == [("scale", {"nodes": 62})]
        await settle(pilot, app)
        feed_of(app).push()
        assert app.store.cluster.view is not None
        assert app.store.cluster.view.wanted == 62
        assert told(app)


async def test_numbers_are_staged_with_the_arrows_and_bad_ones_are_told_at_once() -> None:
    app = app_on(clustered())
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await press(pilot, "N")
        assert isinstance(app.screen, Dialog)
        yes = app.screen.query_one("#yes", Button)
        assert yes.disabled
        await press(pilot, "up")
        assert app.screen.query_one("#nodes", Input).value == ""  # 64 is the most
        await press(pilot, "down", "down")
        assert app.screen.query_one("#nodes", Input).value == "62"
        assert not yes.disabled
        for text, says in (("65", "'65' is not a size of this fleet: 1 to 64"), ("x", "'x' is not a size"), ("64", "already")):
            app.screen.query_one("#nodes", Input).value = text
            await pilot.pause()
            assert says in complaint(app)
            assert yes.disabled
        await press(pilot, "escape")
        assert sent(app) == []


async def test_what_the_head_would_refuse_is_said_and_can_be_forced() -> None:
    fleet = clustered()
    barrier = fleet.spec.fleet.barrier.model_copy(update={"min_ready": 480})
    fleet.spec = fleet.spec.model_copy(update={"fleet": fleet.spec.fleet.model_copy(update={"barrier": barrier})})
    app = app_on(fleet)
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        app.ask_and_act("scale", value="40")
        await opened(pilot)
        tick = app.screen.query_one("#force", Tick)
        assert tick.display
        assert "in spite of the quorum" in str(tick.render())
        tick.focus()
        await press(pilot, "space")
        await say_yes(pilot)
        assert sent(app) == [("scale", {"nodes": 40, "force": True})]


def test_pods_of_nodes_that_were_let_go_already_can_be_ended_by_asking_again() -> None:
    fleet = clustered()
    cluster_of(fleet)._wanted = 62  # the head let two go; whoever asked was interrupted then
    nodes, says, _ = judged_nodes(store_of(fleet), "62")
    assert nodes == 62
    assert says.startswith("2 pods of nodes that are not wanted any more would end")


async def test_where_workers_are_processes_it_says_why_not() -> None:
    app = app_on()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await app.run_named(parse("scale 2").action, "2")
        await pilot.pause()
        assert not isinstance(app.screen, Dialog)
        assert "only a run on a cluster changes its number of nodes" in told(app)
    assert "processes" in why_no_scale(store_of(ScriptedFleet()))


async def test_a_refusal_comes_back_in_the_words_of_the_command(tmp_path: Path) -> None:
    run = ended_run(tmp_path, "kit-1", a_spec())
    async with asyncio.timeout(60):
        reply = await HeadFeed(run).command("scale", {"nodes": 1}, "less is enough")
    assert not reply.ok
    assert "kit-1 has ended (DONE)" in reply.message
    assert "has ended" in RunFolder(run).log("scale").read_text()


def test_reason_and_force_are_arguments_of_the_command(tmp_path: Path) -> None:
    assert scaling.arguments(tmp_path, 3, "quota", force=True) == ["scale", str(tmp_path), "3", "--reason", "quota", "--force"]
    assert scaling.arguments(tmp_path, 3, "", force=False) == ["scale", str(tmp_path), "3"]
