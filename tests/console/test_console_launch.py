"""Launch: the form refuses what `paceline run` refuses, in its words; nothing starts unasked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from console_helpers import text_of, wait_for
from recorded_kit import ended_run
from textual.pilot import Pilot
from textual.widgets import Input

from console.app import PacelineApp
from console.screens.dialogs import Dialog
from console.screens.launch import LaunchScreen
from console.screens.record import RecordScreen
from console.store import preflight
from console.store.launching import Draft, plan_of, remember, spec_files, typed_value
from console.themes import shipped_folder
from harness.doctor import Check
from harness.spec import RunSpec
from harness.specfile import SpecError, load_spec, parse_value


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs, remembered specs and the working directory of nobody else."""
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "runs"


def an_app(**options: bool) -> PacelineApp:
    return PacelineApp(theme_folders=[shipped_folder()], **options)  # type: ignore[arg-type]


async def ready(app: PacelineApp) -> LaunchScreen:
    """With demo's form and all its checks."""
    screen = app.screen
    assert isinstance(screen, LaunchScreen)
    await wait_for(lambda: screen.draft is not None and screen._checked.is_set())
    return screen


async def asked(app: PacelineApp) -> Dialog:
    """The question is there, and the keys are for it."""
    await wait_for(lambda: isinstance(app.screen, Dialog) and app.focused is not None)
    assert isinstance(app.screen, Dialog)
    return app.screen


# --- the draft -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["demo", "gpt-oss-120b-server", "deepseek-r1-offline"])
def test_every_value_of_the_form_can_be_typed_as_it_stands(profile: str) -> None:
    draft = Draft(profile)
    for one in draft.fields():
        assert draft.set(one.dotted, one.value) == "", one.dotted
    assert draft.changes == {}
    values = {one.dotted: one.value for one in draft.fields()}
    again = load_spec(profile, [f"{name}={value}" for name, value in values.items()])
    assert again == draft.spec


def test_the_form_has_every_field_of_a_spec_once() -> None:
    names = [one.dotted for one in Draft("demo").fields()]
    assert len(names) == len(set(names))
    tables = {one.table for one in Draft("demo").fields()}
    assert tables == {"", *(name for name, field in RunSpec.model_fields.items() if hasattr(field.annotation, "model_fields"))}


def test_a_change_is_an_override_and_can_be_taken_back() -> None:
    draft = Draft("demo")
    assert draft.set("fleet.nodes", "2") == ""
    assert draft.set("load.kind", "explore") == ""
    assert draft.spec.fleet.nodes == 2
    assert draft.command() == "run demo -s fleet.nodes=2 -s load.kind=explore"
    changed = {one.dotted: (one.value, one.in_file) for one in draft.fields() if one.changed}
    assert changed == {"fleet.nodes": ("2", "8"), "load.kind": ("explore", "performance")}
    assert draft.set("fleet.nodes", "") == ""
    assert draft.set("load.kind", "performance") == ""
    assert draft.command() == "run demo"


@pytest.mark.parametrize(
    ("dotted", "text", "said"),
    [
        ("fleet.nodes", "0", "must be at least 1"),
        ("fleet.nodes", "many", "not a whole number"),
        ("load.kind", "exlore", "did you mean explore?"),
        ("load.duration_s", "0", "only for load.kind = explore"),
        ("fleet.engine_args", "{ presets = 1 }", "not an argument"),
        ("dataset.path", "none-such.jsonl", ""),  # not read by made-up lengths
    ],
)
def test_what_does_not_hold_is_refused_in_the_words_of_the_command_line(dotted: str, text: str, said: str) -> None:
    draft = Draft("demo")
    before = draft.spec
    problem = draft.set(dotted, text)
    assert said in problem
    assert bool(problem) == bool(said)
    if said:
        assert draft.spec is before
        assert draft.changes == {}
        with pytest.raises(SpecError) as refused:
            load_spec("demo", [f"{dotted}={text}"])
        assert problem in str(refused.value)


@pytest.mark.parametrize(
    "value", [None, 3, 4000.0, 0.25, "Server", "2026", "none", "a b", 'with "quotes"', ["both"], {"a": 1, "b c": "d"}]
)
def test_a_typed_value_is_read_as_what_it_was(value: object) -> None:
    assert parse_value(typed_value(value)) == value


def test_the_plan_counts_what_would_run() -> None:
    plan = plan_of(load_spec("gpt-oss-120b-server"))
    assert (plan.replicas, plan.workers) == (512, 4)
    assert plan.queries == 2_400_000
    endless = plan_of(load_spec("demo", ["load.kind=explore", "load.duration_s=0"]))
    assert endless.load_s != endless.load_s
    assert "until it is stopped" in dict(endless.words)["time"]


def test_spec_files_beside_the_console_are_found_and_others_are_not(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('name = "mine"\n[load]\ntarget_qps = 5\n')
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')
    (tmp_path / "torn.toml").write_text("[load")
    assert spec_files(tmp_path) == [tmp_path / "mine.toml"]


def test_a_file_that_was_started_is_offered_again_newest_first(tmp_path: Path) -> None:
    for name in ("a.toml", "b.toml"):
        (tmp_path / name).write_text("[load]\n")
        remember(str(tmp_path / name))
    remember("demo")  # a profile is there anyway
    assert spec_files() == [tmp_path / "b.toml", tmp_path / "a.toml"]
    (tmp_path / "b.toml").unlink()
    assert spec_files() == [tmp_path / "a.toml"]


# --- preflight -----------------------------------------------------------------------------------------------


def test_each_check_says_what_to_do_when_it_fails(tmp_path: Path) -> None:
    spec = load_spec("demo")
    assert preflight.cluster().ok
    assert preflight.fleet(spec, usable=64).ok
    assert preflight.open_files(spec, hard=100_000).ok
    assert preflight.memory(spec, available_mb=50_000).ok
    assert preflight.keys().ok
    unbound = spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"bind": "203.0.113.7"})})
    short = spec.model_copy(update={"record": spec.record.model_copy(update={"dir": str(tmp_path), "min_free_gb": 1e9})})
    failures = [
        preflight.open_files(spec, hard=100), preflight.memory(spec, available_mb=10),
        preflight.ports(unbound), preflight.runs_folder(short),
    ]  # fmt: skip
    for check in failures:
        assert check.ok is False, check
        assert check.detail
        assert check.fix
    assert preflight.fleet(load_spec("gpt-oss-120b-server"), usable=2).ok is None
    assert preflight.gpu_metrics(spec).ok
    unheard = preflight.gpu_metrics(load_spec("demo", ["metrics.gpu.url=http://127.0.0.1:9"]))
    assert (unheard.ok, "connection refused" in unheard.detail, bool(unheard.fix)) == (None, True, True)


def test_a_run_on_a_cluster_is_checked_there_and_not_against_the_cores_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere/kubeconfig")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    probes = {probe.name: probe for probe in preflight.probes(load_spec("demo", ["cluster.kind=kubernetes"]))}
    assert {"namespace", "rights", "claims", "objects", "capacity", "quota", "images", "dataset", "keys"} <= set(probes)
    assert not {"fleet", "memory", "open files", "ports", "engine"} & set(probes)
    reached = probes["cluster"].answer()
    assert reached.ok is False
    assert "/nowhere/kubeconfig" in reached.detail
    assert probes["rights"].answer().ok is None  # said once, not for all that hangs on it


def test_the_demo_goes_well_on_two_cores_and_not_on_one() -> None:
    on_two, on_one = (preflight.fleet(load_spec("demo"), usable=cores) for cores in (2, 1))
    assert "wait for a core" not in on_two.detail
    assert "wait for a core" in on_one.detail
    assert "about 32 replicas" in on_one.fix


def test_a_dataset_that_cannot_be_read_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("not json\n")
    spec = load_spec("demo", ["dataset.kind=jsonl", f"dataset.path={tmp_path / 'bad.jsonl'}"])
    check = preflight.dataset(spec)
    assert check.ok is False
    assert "bad.jsonl" in check.detail


# --- the screen ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(120, 36), (80, 24), (160, 48)])
async def test_a_console_without_a_run_begins_with_a_choice_its_fields_and_its_checks(size: tuple[int, int]) -> None:
    app = an_app()
    async with app.run_test(size=size) as pilot:
        screen = await ready(app)
        await pilot.pause()
        choices, form = text_of(screen.choices), text_of(screen.form)
        for text in ("Profiles", "demo", "gpt-oss-120b-server", "type a path"):
            assert text in choices
        assert "[model]" in form
        assert "Preflight" in str(screen.checks.border_title)
        names = [check.name for check in screen.checks.checks if check is not None]
        assert {"cluster", "ports", "keys", "engine", "dataset", "runs folder", "loadgen"} <= set(names)


async def test_a_field_is_changed_in_place_or_refused_with_the_reason() -> None:
    app = an_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await ready(app)
        await pilot.press("enter")
        assert screen.focused is screen.form
        screen.form.move_to(screen.form.find("fleet.nodes") or 0)
        await pilot.press("enter")
        box = screen.query_one("#field", Input)
        assert (box.value, screen.focused) == ("8", box)
        await pilot.press(*"G0", "enter")  # keys are typed, not obeyed
        await wait_for(lambda: screen.about.wrong)
        assert "fleet.nodes" in screen.about.text
        await pilot.press("ctrl+u", *"3", "enter")
        await wait_for(lambda: not screen.has_class("-editing") and screen.focused is screen.form)
        assert screen.draft is not None
        assert screen.draft.spec.fleet.nodes == 3
        assert "3 x 8 = 24 replicas" in text_of(screen.query_one("#plan"))
        await wait_for(lambda: "was 8" in text_of(screen.form))
        await pilot.press("i", *"5", "escape")
        assert screen.draft.spec.fleet.nodes == 3


async def test_choices_of_a_field_are_stepped_through() -> None:
    app = an_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await ready(app)
        await pilot.press("enter")
        screen.form.move_to(screen.form.find("load.kind") or 0)
        await pilot.press("i", "down", "down", "enter")
        await wait_for(lambda: screen.draft is not None and screen.draft.spec.load.kind == "explore")


async def test_a_typed_path_is_a_spec_and_a_bad_file_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('name = "a"\n[load]\ntarget_qps = 5\n')
    (tmp_path / "b.toml").write_text('name = "b"\n[load]\ntarget_qpx = 5\n')
    app = an_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await ready(app)
        for name in ("b.toml", "a.toml"):
            screen.choices.move_to(next(at for at, one in enumerate(screen.choices.choices) if one.kind == "path"))
            await pilot.press("enter", *str(tmp_path / "nowhere"), "enter")
            await pilot.pause()
            assert "no such file" in screen.about.text
            screen.query_one("#field", Input).value = str(tmp_path / name)
            await pilot.press("enter")
            if name == "b.toml":
                await wait_for(lambda: "target_qps" in text_of(screen.form))
                assert screen.draft is None
        await wait_for(lambda: screen.draft is not None and screen.draft.spec.name == "a")


async def test_start_asks_says_what_it_starts_and_cancel_has_the_focus(root: Path) -> None:
    app = an_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await ready(app)
        await pilot.press("G")
        await asked(app)
        assert app.focused is not None
        assert app.focused.id == "cancel"
        labels = [label for label, _ in screen._facts(screen.draft or Draft("demo"))]
        assert labels == ["fleet", "processes", "attempt", "time", "record", "preflight", "command"]
        await pilot.press("enter")
        await wait_for(lambda: app.screen is screen)
        assert not root.exists() or not list(root.iterdir())


async def test_a_failed_check_must_be_confirmed_by_name(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "keys", lambda: Check("keys", False, "no CURVE", "install pyzmq"))
    app = an_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await ready(app)
        assert "1 failed" in str(screen.checks.border_title)
        await pilot.press("G")
        dialog = await asked(app)
        assert "in spite of it" in str(dialog.query_one("#yes").label)  # type: ignore[attr-defined]
        assert ("FAILED", "keys: no CURVE → install pyzmq") in screen._facts(screen.draft or Draft("demo"))
        await pilot.press("escape")


async def test_a_read_only_console_starts_nothing() -> None:
    app = an_app(read_only=True)
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await ready(app)
        await pilot.press("G")
        await pilot.pause()
        assert app.screen is screen
        assert any("read-only" in str(toast.message) for toast in app._notifications)


async def test_what_cannot_start_says_why_and_leaves_no_folder(root: Path) -> None:
    app = an_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await ready(app)
        assert screen.draft is not None
        assert screen.draft.set("record.min_free_gb", "1000000000") == ""
        screen._show_draft()
        await wait_for(screen._checked.is_set)
        await pilot.press("G")
        await asked(app)
        await pilot.press("right", "enter")
        await wait_for(lambda: screen.about.wrong)
        assert "min_free_gb" in screen.about.text
        assert list(root.iterdir()) == []


async def test_recent_runs_are_there_and_enter_opens_one(root: Path) -> None:
    ended_run(root, "before-1")
    app = an_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await ready(app)
        await wait_for(lambda: any(one.label == "before-1" for one in screen.choices.choices))
        await pilot.press("end")
        await wait_for(lambda: "enter" in text_of(screen.form))
        assert "VALID" in text_of(screen.form)
        await pilot.press("enter")
        await wait_for(lambda: isinstance(app.screen, RecordScreen))


# --- what is typed is never dropped --------------------------------------------------------------------------


async def edited(app: PacelineApp, screen: LaunchScreen, dotted: str, pilot: Pilot[Any]) -> Input:
    """With the box open on that field."""
    screen.form.focus()
    screen.form.move_to(screen.form.find(dotted) or 0)
    await pilot.press("i")
    return screen.query_one("#field", Input)


async def test_tab_completes_a_value_and_takes_one_that_is_complete() -> None:
    app = an_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await ready(app)
        box = await edited(app, screen, "load.kind", pilot)
        assert "tab completes" in screen.about.text
        await pilot.press(*"exp", "tab")
        assert (box.value, screen.focused) == ("explore", box)
        await pilot.press("tab")
        await wait_for(lambda: not screen.has_class("-editing") and screen.focused is screen.form)
        assert screen.draft is not None
        assert screen.draft.spec.load.kind == "explore"
        await pilot.pause()


async def test_a_value_that_holds_is_taken_when_the_box_is_left_and_another_keeps_it_open() -> None:
    app = an_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await ready(app)
        await edited(app, screen, "fleet.nodes", pilot)
        await pilot.press("3")
        screen.checks.focus()
        await wait_for(lambda: screen.draft is not None and screen.draft.spec.fleet.nodes == 3)
        await wait_for(lambda: not screen.has_class("-editing"))
        assert screen.focused is screen.checks
        box = await edited(app, screen, "fleet.nodes", pilot)
        await pilot.press("0")
        screen.choices.focus()
        await wait_for(lambda: screen.about.wrong)
        await pilot.pause()
        assert (box.value, screen.focused, screen.has_class("-editing")) == ("0", box, True)
        assert "fleet.nodes" in screen.about.text


async def test_a_start_takes_what_is_typed_or_does_not_happen() -> None:
    app = an_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await ready(app)
        await edited(app, screen, "load.kind", pilot)
        await pilot.press(*"exp")
        screen.action_start()
        await wait_for(lambda: screen.about.wrong)
        await pilot.pause()
        assert app.screen is screen
        await pilot.press("tab")
        screen.action_start()
        await asked(app)
        assert ("attempt", "explore, Server at 144 QPS, about 17,280 queries") in screen._facts(screen.draft or Draft("demo"))


async def test_only_the_keys_that_work_are_offered_while_a_value_is_typed() -> None:
    app = an_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await ready(app)
        await edited(app, screen, "load.kind", pilot)
        told = text_of(screen.query_one("#footer"))
        assert "tab complete" in told
        assert "Start" not in told
        await pilot.press("escape")
        assert "Start" in text_of(screen.query_one("#footer"))


async def test_a_field_is_found_by_a_part_of_its_name_and_set_by_name() -> None:
    app = an_app()
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await ready(app)
        await pilot.press("slash", *"_qps")
        await wait_for(lambda: screen.form.field is not None and screen.form.field.dotted == "load.target_qps")
        await pilot.press("enter")
        assert screen.focused is screen.form
        screen.command_edit("fleet.nodes=2")
        await wait_for(lambda: screen.draft is not None and screen.draft.spec.fleet.nodes == 2)


@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_what_would_start_and_that_there_are_more_checks_is_on_every_terminal(size: tuple[int, int]) -> None:
    app = an_app()
    async with app.run_test(size=size):
        screen = await ready(app)
        told = " ".join(text_of(screen.query_one("#plan")).split())
        assert "64 replicas" in told
        assert "144 QPS" in told
        assert "more lines" in text_of(screen.checks)
