"""What leaves the console: exports, pictures, copied text; where they go, and what is said when they cannot."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shutil
from pathlib import Path

import pytest
from console_helpers import AppMaker, settle

from console.app import PacelineApp
from console.export import free_stem, write_tables
from console.feeds.scripted import ScriptedFleet


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return folder


def said(app: PacelineApp) -> str:
    return "\n".join(f"{note.title}: {note.message}" for note in app._notifications)


# --- files -------------------------------------------------------------------------------------------------


def test_unknown_is_null_in_json_and_empty_in_csv(tmp_path: Path) -> None:
    rows = [{"slot": "a", "z": math.nan, "deep": {"x": [math.inf, 1.0]}}, {"slot": "b", "more": 1}]
    files = write_tables({"replicas": rows, "none": []}, tmp_path, "fleet")
    assert [file.name for file in files] == ["fleet.json", "fleet-replicas.csv"]
    assert json.loads(files[0].read_text())["replicas"][0] == {"slot": "a", "z": None, "deep": {"x": [None, 1.0]}}
    with files[1].open(newline="") as file:
        found = list(csv.DictReader(file))
    assert found[0] == {"slot": "a", "z": "", "deep": '{"x": [null, 1.0]}', "more": ""}
    assert found[1]["more"] == "1"


def test_numbers_keep_their_digits(tmp_path: Path) -> None:
    value = 0.1 + 0.2
    json_file, csv_file = write_tables({"t": [{"v": value}]}, tmp_path, "x")
    assert json.loads(json_file.read_text())["t"][0]["v"] == value
    assert csv_file.read_text().splitlines()[1] == repr(value)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    first = write_tables({"t": [{"v": 1}]}, tmp_path, "live-20261118-140211")
    second = write_tables({"t": [{"v": 2}]}, tmp_path, "live-20261118-140211")
    assert [file.name for file in second] == ["live-20261118-140211-2.json", "live-20261118-140211-2-t.csv"]
    assert json.loads(first[0].read_text())["t"][0]["v"] == 1
    assert free_stem(tmp_path, "live-20261118-140211", ".json").endswith("-3")


def test_an_export_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "x-t.csv").mkdir()  # where the table would go
    with pytest.raises(IsADirectoryError):
        write_tables({"t": [{"v": 1}]}, tmp_path, "x")
    assert [path.name for path in tmp_path.iterdir()] == ["x-t.csv"]


# --- keys --------------------------------------------------------------------------------------------------


async def test_export_writes_what_the_screen_shows_and_says_where(make_app: AppMaker, here: Path) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await settle(pilot, app)
        await pilot.press("ctrl+e")
        await pilot.pause()
        files = sorted(here.iterdir())
        names = [file.name for file in files]
        assert all(re.fullmatch(r"live-\d{8}-\d{6}(-[a-z]+)?\.(json|csv)", name) for name in names), names
        found = json.loads(next(file for file in files if file.suffix == ".json").read_text())
        assert {"run", "load", "sla", "stragglers", "series", "replicas"} <= set(found)
        assert len(found["replicas"]) == 512
        stem = next(file for file in files if file.suffix == ".json").stem
        assert said(app) == f": {len(files)} files: {stem}*\nin {here}"


async def test_two_exports_in_one_second_are_two(make_app: AppMaker, here: Path) -> None:
    app = make_app(ScriptedFleet(nodes=1, gpus=2))
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        await pilot.press("ctrl+e", "ctrl+e", "ctrl+s", "ctrl+s")
        await pilot.pause()
    assert [len(list(here.glob(f"live-*.{suffix}"))) for suffix in ("json", "svg")] == [2, 2]


async def test_a_picture_is_the_screen_as_svg(make_app: AppMaker, here: Path) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await settle(pilot, app)
        await pilot.press("ctrl+s")
        await pilot.pause()
        (file,) = here.glob("live-*.svg")
        assert "<svg" in file.read_text()[:200]
        assert file.name in said(app)


async def test_it_goes_into_the_record_when_there_is_one(make_app: AppMaker, here: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    record.mkdir()
    (record / "run.json").write_text("{}")
    app = make_app(ScriptedFleet(nodes=1, gpus=2))
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot, app)
        app.store.record = str(record)
        await pilot.press("ctrl+e")
        await pilot.pause()
    assert list((record / "exports").glob("live-*.json"))
    assert [path.name for path in record.iterdir() if path.name.startswith("live")] == []
    assert list(here.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_record_that_cannot_be_written_gives_way_to_the_working_directory(
    make_app: AppMaker, here: Path, tmp_path: Path
) -> None:
    record = tmp_path / "record"
    record.mkdir()
    (record / "run.json").write_text("{}")
    record.chmod(0o500)
    app = make_app(ScriptedFleet(nodes=1, gpus=2))
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await settle(pilot, app)
        app.store.record = str(record)
        await pilot.press("ctrl+e")
        await pilot.pause()
        assert "not into the record" in said(app)
    assert list(here.glob("live-*.json"))


async def test_nowhere_to_write_is_told_and_the_console_goes_on(make_app: AppMaker, here: Path) -> None:
    app = make_app(ScriptedFleet(nodes=1, gpus=2))
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await settle(pilot, app)
        shutil.rmtree(here)  # the working directory is gone
        await pilot.press("ctrl+e")
        await pilot.pause()
        assert "no export: " in said(app)
        assert "No such file" in said(app)
        await pilot.press("ctrl+s")
        await pilot.pause()
        assert "no picture: " in said(app)
        assert app.is_running


async def test_a_screen_without_data_says_so(make_app: AppMaker, here: Path) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await settle(pilot, app)
        await pilot.press("0")
        await settle(pilot, app)
        shown = app.painted_screen
        if shown is not None and any(shown.tables().values()):
            return  # that screen has data of its own
        await pilot.press("ctrl+e")
        await pilot.pause()
        assert "this screen has no data yet" in said(app)
    assert list(here.iterdir()) == []


async def test_copied_text_is_in_a_file_too_and_long_text_is_told_short(make_app: AppMaker, here: Path, tmp_path: Path) -> None:
    app = make_app()
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await settle(pilot, app)
        app.copy("x" * 5000, "line")
        await pilot.pause()
        copied = tmp_path / "state" / "paceline" / "copied.txt"
        assert copied.read_text() == "x" * 5000 + "\n"
        assert str(copied) in said(app)
        assert "x" * 300 not in said(app)


async def test_copying_without_a_place_for_the_file_still_copies(
    make_app: AppMaker, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").write_text("in the way")
    app = make_app()
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await settle(pilot, app)
        app.copy("abc", "line")
        await pilot.pause()
        assert app.clipboard == "abc"
        assert "also in" not in said(app)
