"""The screens under keys, on sample data: what is shown, what is asked, what is sent."""

from __future__ import annotations

import msgspec
import pytest
from console_helpers import AppMaker, HandClock, settle, text_of, wait_for
from textual.command import CommandList, CommandPalette
from textual.widgets import Button, Input

from console.actions import ACTIONS
from console.app import PacelineApp
from console.feeds.scripted import ScriptedFeed, ScriptedFleet
from console.screens.compare import CompareScreen
from console.screens.detail import ReplicaScreen
from console.screens.dialogs import AskOnQuit, AskRate, ConfirmAct, TypeToConfirm, parse_qps
from console.screens.events import EventsScreen
from console.screens.fleet import FleetScreen
from console.screens.help import HelpScreen
from console.screens.launch import LaunchScreen
from console.screens.live import LiveScreen
from console.screens.metrics import MetricsScreen
from console.screens.record import RecordScreen
from console.screens.runs import RunsScreen
from console.screens.scaling import ScalingScreen
from console.screens.sla import SlaScreen

SIZES = [(120, 36), (80, 24)]


def feed_of(app: object) -> ScriptedFeed:
    feed = app.session.feed  # type: ignore[attr-defined]
    assert isinstance(feed, ScriptedFeed)
    return feed


@pytest.mark.parametrize("size", SIZES)
async def test_live_shows_sla_heat_map_rows_and_that_it_is_synthetic(make_app: AppMaker, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app)
        assert isinstance(app.screen, LiveScreen)
        sla = text_of(app.screen.query_one("#sla"))
        assert "TTFT p99" in sla
        assert "of 3.00 s" in sla
        assert "OK" in sla
        assert "SYNTHETIC" in text_of(app.screen.query_one("#header"))
        heat = text_of(app.screen.heat)
        cells = sum(heat.count(glyph) for glyph in "▁▂▃▄▅▆▇█▀×⊘▽▲")
        assert cells >= (512 if size[0] == 120 else 256)
        assert "×" in heat
        rows = text_of(app.screen.table).splitlines()
        assert "node015/gpu3" in rows[1]
        assert "SLOW" in rows[1]
        assert "MEASURING" in text_of(app.screen.query_one("#phase"))
        footer = text_of(app.screen.query_one("#footer"))
        assert "Help" in footer
        assert "Detach" in footer
        for key in ("= QPS", "↵ Open", "/ Filter", "e Evict", " d ", " r ", " o ", " z "):
            assert key in footer


async def test_the_footer_has_every_key_and_what_a_screen_alone_has_keeps_its_label(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("2")
        await settle(pilot, app)
        footer = text_of(app.screen.query_one("#footer"))
    for label in ("n Nodes", "w Wide", "space Mark", "z Faults", "= QPS", "/ Filter"):
        assert label in footer
    for key in "edrof":
        assert f" {key} " in footer


@pytest.mark.parametrize("size", [*SIZES, (200, 60), (60, 15)])
async def test_no_line_is_wider_than_its_widget(make_app: AppMaker, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app)
        for widget in app.screen.query("Painted, ReplicaTable"):
            for y in range(widget.content_size.height):
                assert widget.render_line(y).cell_length <= widget.content_size.width, widget.id


async def test_cursor_stays_on_its_slot_when_the_order_changes(make_app: AppMaker, hand_clock: HandClock) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("down", "down", "down", "down", "down")
        chosen = app.view.cursor
        before = app.view.position(app.store)
        feed = feed_of(app)
        feed.fleet.state[40:60] = 7  # LOST: they sort above the chosen one
        hand_clock.s += 10
        feed.push()
        await settle(pilot, app)
        assert app.view.cursor == chosen
        assert app.view.position(app.store) > before
        assert any(line.startswith("▌") and str(chosen) in line for line in text_of(app.screen.query_one("#table")).splitlines())


@pytest.mark.parametrize("size", SIZES)
async def test_evict_asks_with_cancel_focused_and_esc_sends_nothing(make_app: AppMaker, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await settle(pilot, app)
        await pilot.press("e")
        await pilot.pause()
        assert isinstance(app.screen, ConfirmAct)
        assert app.focused is app.screen.query_one("#cancel", Button)
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, LiveScreen)
        await pilot.press("e")
        await pilot.pause()
        await pilot.press("enter")  # on Cancel
        await pilot.pause()
        assert isinstance(app.screen, LiveScreen)
        assert feed_of(app).sent == []


async def test_confirmed_evict_sends_one_command_with_the_incarnation_of_the_key_press(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        slot = app.view.cursor
        assert slot is not None
        at = app.store.index[slot]
        seen = app.store.slots[at].incarnation
        await pilot.press("e")
        await pilot.pause()
        app.store.slots[at] = msgspec.structs.replace(app.store.slots[at], incarnation="a-later-life")
        app.screen.query_one("#reason", Input).value = "thermal"
        await pilot.click("#yes")
        await pilot.pause()
        sent = feed_of(app).sent
        assert [(command.name, command.args, command.reason) for command in sent] == [
            ("evict", {"slot": slot, "incarnation": seen}, "thermal")
        ]
        assert any("evict" in note.message for note in app._notifications)


async def test_a_refusal_of_the_head_is_told(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        feed_of(app).refuse = "quorum: 509 replicas would be left, 510 are needed"
        await pilot.press("d")
        await pilot.pause()
        await pilot.click("#yes")
        await pilot.pause()
        assert any("quorum" in note.message and note.severity == "error" for note in app._notifications)


@pytest.mark.parametrize("junk", ["abc", "-5", "0", "1e9", "nan", "inf", "4,000", "1_0", "4000"])
async def test_rate_dialog_refuses_junk(make_app: AppMaker, junk: str) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("=")
        await pilot.pause()
        assert isinstance(app.screen, AskRate)
        app.screen.query_one("#qps", Input).value = junk
        await pilot.pause()
        assert app.screen.query_one("#yes", Button).disabled
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, AskRate)
        assert feed_of(app).sent == []


@pytest.mark.parametrize(("kind", "said"), [("explore", "at once (exploration)"), ("performance", "SUPERSEDED")])
async def test_rate_dialog_says_the_mechanism_and_sends_the_number(make_app: AppMaker, kind: str, said: str) -> None:
    app = make_app(ScriptedFleet(kind=kind))
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("=")
        await pilot.pause()
        assert said in " ".join(str(fact.render()) for fact in app.screen.query(".fact-text"))
        await pilot.press("4", "2", "0", "0", "enter")
        assert app.focused is app.screen.query_one("#yes", Button)
        await pilot.press("enter")
        await pilot.pause()
        assert [(command.name, command.args) for command in feed_of(app).sent] == [("set_rate", {"qps": 4200.0})]


def test_rates_are_read_strictly() -> None:
    assert parse_qps(" 4200.5 ") == 4200.5
    assert parse_qps("1e3") == 1000.0
    assert parse_qps("1000001") is None


async def test_stop_needs_the_runs_name(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("S")
        await pilot.pause()
        assert isinstance(app.screen, TypeToConfirm)
        yes, word = app.screen.query_one("#yes", Button), app.screen.query_one("#word", Input)
        word.value = "gptoss"
        await pilot.pause()
        assert yes.disabled
        word.value = app.store.run
        await pilot.pause()
        assert not yes.disabled
        await pilot.press("enter", "enter")
        await pilot.pause()
        assert [command.name for command in feed_of(app).sent] == ["stop"]


async def test_silence_greys_the_panels_stamps_the_age_and_blocks_acts(make_app: AppMaker, hand_clock: HandClock) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        assert not app.screen.has_class("-stale")
        hand_clock.s += 3
        await settle(pilot, app)
        assert app.screen.has_class("-stale")
        assert "silent 3s" in text_of(app.screen.query_one("#header"))
        await pilot.press("e")
        await pilot.pause()
        assert isinstance(app.screen, LiveScreen)
        feed_of(app).push()
        await settle(pilot, app)
        assert not app.screen.has_class("-stale")


@pytest.mark.parametrize("role", ["read-only", "viewer"])
async def test_who_may_only_look_is_told_why(make_app: AppMaker, role: str) -> None:
    fleet = ScriptedFleet()
    if role == "viewer":
        fleet.role = "viewer"
    app = make_app(fleet, read_only=role == "read-only")
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        for key in ("e", "d", "r", "a", "=", "S"):
            await pilot.press(key)
            await pilot.pause()
            assert isinstance(app.screen, LiveScreen)
        assert feed_of(app).sent == []
        assert any(role in note.message for note in app._notifications)


async def test_pause_is_for_explore_attempts(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("p")
        await pilot.pause()
        assert isinstance(app.screen, LiveScreen)
    explore = make_app(ScriptedFleet(kind="explore"))
    async with explore.run_test(size=(120, 36)) as pilot:
        await settle(pilot, explore)
        await pilot.press("p")
        await pilot.pause()
        await pilot.click("#yes")
        await pilot.pause()
        feed_of(explore).push()
        await settle(pilot, explore)
        assert "PAUSED" in text_of(explore.screen.query_one("#header"))
        assert [command.name for command in feed_of(explore).sent] == ["pause"]


async def test_barrier_names_who_is_missing_and_why(make_app: AppMaker) -> None:
    app = make_app(ScriptedFleet(phase="WARMING", at_s=0.0))
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        barrier = text_of(app.screen.query_one("#barrier"))
        assert "of 512 ready" in barrier
        assert "warming, round 3 of 30" in barrier
        assert "more missing" in barrier
        assert not app.screen.query_one("#sla-tier").display


async def test_verdict_banner_gives_word_and_reasons(make_app: AppMaker) -> None:
    fleet = ScriptedFleet()
    fleet.phase, fleet.verdict, fleet.reasons = "DONE", "INVALID", ["TTFT p99 3.21 s is over the limit", "word " * 15, "the last"]
    app = make_app(fleet)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        banner = text_of(app.screen.query_one("#verdict"))
        assert "INVALID" in banner
        assert "3.21 s" in banner
        assert "synthetic" in banner
        assert "the last" in banner
        await pilot.press("q")
    assert app.return_value == "left"


async def test_filter_narrows_as_typed_and_keys_are_text_meanwhile(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("slash", "l", "o", "s", "t")
        await pilot.pause()
        assert [app.store.slots[int(at)].slot for at in app.view.rows] == ["node010/gpu0"]
        await pilot.press("e")
        await pilot.pause()
        assert isinstance(app.screen, LiveScreen)
        assert app.view.text == "loste"
        await pilot.press("escape")
        await pilot.pause()
        assert len(app.view.rows) == 512


async def test_enter_opens_the_replica_and_esc_comes_back(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("enter")
        await settle(pilot, app)
        assert isinstance(app.screen, ReplicaScreen)
        assert "node015/gpu3" in text_of(app.screen.query_one("#header"))
        assert "SLOW" in text_of(app.screen.query_one("#now-facts"))
        assert "straggler" in text_of(app.screen.query_one("#slot-events"))
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, LiveScreen)


async def test_help_lists_every_action(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        shown = " ".join(str(line.render()) for line in app.screen.query(".help-key"))
        assert [action.title for action in ACTIONS if action.title not in shown] == []


def test_every_action_can_be_run_and_no_key_means_two_things_on_a_screen() -> None:
    screens = (
        LaunchScreen, LiveScreen, FleetScreen, ReplicaScreen, SlaScreen, EventsScreen, RunsScreen, MetricsScreen, RecordScreen,
        CompareScreen, ScalingScreen,
    )  # fmt: skip
    owners = {screen.WHERE: screen for screen in screens} | {"app": PacelineApp}
    missing = [
        f"{where}.{action.id}"
        for action in ACTIONS
        for where in action.where
        if not action.acts and not hasattr(owners[where], f"action_{action.id}")
    ]
    assert missing == []
    for where in owners:
        keys = [key for action in ACTIONS if where in action.where or "app" in action.where for key in action.keys.split(",")]
        assert len(keys) == len(set(keys)), where


async def test_theme_key_goes_round_and_repaints(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        first = app.screen.query_one("#sla").render_line(0)
        await pilot.press("T")
        await pilot.pause()
        await settle(pilot, app)
        assert app.theme == app.theme_names[1]
        assert app.screen.query_one("#sla").render_line(0) != first
        await pilot.press(*["T"] * (len(app.theme_names) - 1))
        assert app.theme == "paceline-dark"


async def test_narrow_terminal_swaps_heat_map_for_charts(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        assert app.screen.query_one("#fleet-tier").display
        await pilot.press("t")
        await settle(pilot, app)
        assert not app.screen.query_one("#fleet-tier").display
        assert app.screen.query_one("#ttft-chart").size.height > 0


async def test_quitting_detaches_and_the_demo_asks(make_app: AppMaker) -> None:
    plain = make_app()
    async with plain.run_test(size=(80, 24)) as pilot:
        await settle(pilot, plain)
        await pilot.press("q")
    assert plain.return_value == "detached"
    assert feed_of(plain).sent == []
    for button, result, sent in (("#leave", "detached", []), ("#stop", "stop", ["stop"])):
        demo = make_app(ask_on_quit=True)
        async with demo.run_test(size=(80, 24)) as pilot:
            await settle(pilot, demo)
            await pilot.press("q")
            await pilot.pause()
            assert isinstance(demo.screen, AskOnQuit)
            assert demo.focused is demo.screen.query_one("#cancel", Button)
            await pilot.click(button)
            await pilot.pause()
        assert demo.return_value == result
        assert [command.name for command in feed_of(demo).sent] == sent


async def test_picture_is_saved_and_the_toast_says_where(
    make_app: AppMaker, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, app)
        await pilot.press("ctrl+s")
        await pilot.pause()
        assert any(".svg\nin " in note.message for note in app._notifications)


async def test_palette_offers_the_same_acts(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        titles = {command.title for command in app.get_system_commands(app.screen)}
        here = {action.title for action in ACTIONS if {"app", "live"} & set(action.where) and action.group != "Move"}
        assert titles == here - {"Palette", "Command line"}
        await pilot.press("ctrl+p")
        await wait_for(lambda: isinstance(app.screen, CommandPalette) and isinstance(app.focused, Input))
        await pilot.press(*"Evict")
        offers = app.screen.query_one(CommandList)
        await wait_for(lambda: offers.highlighted is not None and "Evict" in str(offers.get_option_at_index(0).prompt))
        await wait_for(lambda: not any(worker.is_running for worker in app.workers if worker.node is app.screen))
        await pilot.press("enter")
        await wait_for(lambda: isinstance(app.screen, ConfirmAct))


async def test_acts_close_together_are_all_marked_on_the_time_axis(make_app: AppMaker) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        fleet, feed = feed_of(app).fleet, feed_of(app)
        feed.tell(fleet.note(318.0, "operator:kim@head", "act.drain", "node001/gpu1"))
        feed.tell(fleet.note(319.0, "operator:kim@head", "act.readmit", "node001/gpu1"))
        await settle(pilot, app)
        axis = text_of(app.screen.query_one("#rate-chart")).splitlines()[-1]
        assert axis.count("▲") >= 2
        assert "▲3 acts" in axis, "with the eviction of a moment before"
