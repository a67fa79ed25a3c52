"""kernels report, show and check on the command line: pages, JSON, CSV, charts, and what they refuse."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from console.cli import main
from kernels.accelerators import accelerator
from kernels.identity import KERNEL_NAME, kernel_hash
from kernels.shapes import model
from kernels.store import About, KeyFacts, about_path, class_folder, of_accelerator, write_table
from kernels.store.lookup import SHIPPED
from kernels.tile import LayerConfig

Told = tuple[int, str, str]
Run = Callable[..., Told]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("PACELINE_KERNEL_STORE", raising=False)
    monkeypatch.delenv("PACELINE_DEBUG", raising=False)

    def call(*words: str) -> Told:
        code = main(["kernels", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """One measured table, of an MI300X: times that nobody measured, for the pages only."""
    return stored(tmp_path / "store")


def stored(root: Path, kernel: str = "") -> Path:
    of = of_accelerator(accelerator("MI300X"))
    keys = {
        16: KeyFacts(us=254.2, spread_us=2.0, floor_us=127.1, of_floor=0.5),
        64: KeyFacts(us=346.7, floor_us=277.4, of_floor=0.8),
    }
    about = About(
        model("gpt-oss-120b"), of.target, of.compute_units, of.memory_gb, of.device_name, "measured", kernel or kernel_hash(),
        "3.9.0", date="2026-11-20T10:00:00Z", keys=keys,
    )  # fmt: skip
    write_table(class_folder(root, of), {m: LayerConfig() for m in keys}, about)
    return root


def test_the_report_has_the_floor_of_every_accelerator_and_says_that_nothing_was_measured(run: Run) -> None:
    code, out, err = run("report", "--m", "1,16,512")
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if " on " in line and "TB/s" in line] == [
        "gpt-oss-120b on MI355X (gfx950, 8 TB/s)",
        "gpt-oss-120b on MI300X (gfx942, 5.3 TB/s)",
        "gpt-oss-120b on H200 (sm_90, 4.8 TB/s)",
    ]
    assert [line.split()[:5] for line in out.splitlines() if line.startswith(" 16 ")] == [
        ["16", "51.0", "674", "84.2", "bytes"],
        ["16", "51.0", "674", "127", "bytes"],
        ["16", "51.0", "674", "140", "bytes"],
    ]
    assert "not measured: no time of these is known here" in out
    assert max(map(len, out.splitlines()[:-1])) <= 80


def test_a_measured_time_stands_beside_the_floor_and_nothing_where_there_is_none(run: Run, store: Path) -> None:
    code, out, _ = run("report", "--on", "MI300X", "--m", "16,32,64", "--store", str(store))
    assert code == 0
    sixteen, between, sixty_four = (line.split() for line in out.splitlines()[3:6])
    assert sixteen[5:] == ["254.2", "50%", "tuned", "16x64x128/4/2"]
    assert between[5:] == ["not", "measured", "-", "nearest", "(M", "64)", "16x64x128/4/2"]
    assert sixty_four[5:7] == ["346.7", "80%"]


def test_the_report_as_json_is_one_object_and_as_csv_a_line_a_row(run: Run, store: Path) -> None:
    code, out, _ = run("report", "--json", "--model", "all", "--m", "1,16", "--store", str(store))
    found = json.loads(out)
    assert code == 0
    assert len(found["rows"]) == 6 * 3 * 2
    assert found["accelerators"]["H200"] == {"target": "sm_90", "bandwidth_tb_s": 4.8, "bf16_tflops": 989.0}
    (row,) = [row for row in found["rows"] if (row["model"], row["on"], row["m"]) == ("gpt-oss-120b", "MI300X", 16)]
    assert (row["measured_us"], row["config"], row["bound"]) == (254.2, "tuned", "bytes")
    assert sum(row["measured_us"] is not None for row in found["rows"]) == 1
    code, out, _ = run("report", "--csv", "--m", "1,16")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == 6
    assert rows[0]["measured_us"] == ""


def test_ranks_see_their_part_and_all_tokens(run: Run) -> None:
    _, out, _ = run("report", "--model", "DeepSeek-R1", "--ep", "8", "--on", "h200", "--m", "8")
    assert out.startswith("DeepSeek-R1 EP8 on H200")
    assert "32 of 256 experts, top 8, H 7168, I 2048, fp8" in out
    assert " 65.9 " in out


def test_a_persons_bandwidth_and_a_benchmarks_times_are_used(run: Run, tmp_path: Path) -> None:
    toml, bench = tmp_path / "b.toml", tmp_path / "bench.json"
    toml.write_text("[H200]\nbandwidth_tb_s = 4.3\n")
    shape = {"experts": 128, "top_k": 4, "hidden": 2880, "intermediate": 2880, "m": 16}
    rows: list[dict[str, Any]] = [{"kernel": KERNEL_NAME, **shape, "us": 200.0}, {"kernel": "a peer", **shape, "us": 1.0}]
    bench.write_text(json.dumps({"bench": "gpu_moe", "device": {"target": "sm_90"}, "rows": rows}))
    code, out, err = run("report", "--on", "H200", "--m", "16", "--bandwidth", str(toml), "--measured", str(bench))
    assert (code, err) == (0, "")
    assert "(sm_90, 4.3 TB/s)" in out
    assert out.splitlines()[3].split()[5:7] == ["200.0", "78%"]
    rows[0]["us"] = 0
    bench.write_text(json.dumps({"bench": "gpu_moe", "device": {"target": "sm_90"}, "rows": rows}))
    assert "rows: row 1: us = 0 must be a number over 0" in run("report", "--measured", str(bench))[2]
    rows[0] |= {"us": 9.0, "routing": "zipf"}
    of_skewed = {"bench": "gpu_moe", "device": {"target": "sm_90"}, "kernel_hash": kernel_hash(), "rows": rows}
    bench.write_text(json.dumps(of_skewed))
    assert "not measured: " in run("report", "--on", "H200", "--measured", str(bench))[1]
    bench.write_text(json.dumps(of_skewed | {"rehearsal": True}))
    assert "is of a rehearsal, whose times mean nothing" in run("report", "--measured", str(bench))[2]
    bench.write_text(json.dumps(of_skewed | {"kernel_hash": "0123456789ab"}))
    assert "is of kernel 0123456789ab" in run("report", "--measured", str(bench))[2]
    bench.write_text("{}")
    assert "was not written by tests/bench/gpu_moe.py" in run("report", "--measured", str(bench))[2]


def test_a_chart_is_drawn_beside_the_table(run: Run, tmp_path: Path) -> None:
    code, out, err = run("report", "--m", "1,16", "--chart", str(tmp_path / "floors.svg"))
    assert (code, out[:12]) == (0, "gpt-oss-120b")
    assert f"{tmp_path / 'floors.svg'}: written" in err
    assert "<svg" in (tmp_path / "floors.svg").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "--model", "gpt-oss-120"], "model 'gpt-oss-120' is not known to the kernels; did you mean gpt-oss-120b?"),
        (["report", "--on", "MI300"], "target 'MI300' is not known; did you mean MI300X?"),
        (["report", "--model", "gpt-oss"], "? known: gpt-oss-120b, gpt-oss-20b, DeepSeek-R1, "),
        (["report", "--m", "0"], "--m 0 must be a number of tokens, 1 to 1,048,576"),
        (["report", "--m", "1,x"], "--m x must be a number of tokens"),
        (["report", "--m", ","], "--m is empty"),
        (["report", "--tp", "7"], "tp = 7: must divide 2880, the intermediate size of gpt-oss-120b"),
        (["report", "--ep", "0"], "ep = 0: must divide 128, the experts of gpt-oss-120b"),
        (["report", "--json", "--csv"], "--json or --csv, not both"),
        (["report", "--chart", "a.gif"], "must end in .svg, .png, .pdf"),
        (["report", "--store", "/nowhere"], "--store = /nowhere: is not there"),
        (["report", "--bandwidth", "/nowhere.toml"], "paceline: /nowhere.toml: is no file"),
        (["report", "--measured", "/nowhere.json"], "/nowhere.json: cannot be read"),
        (["show", "--on", "cpu"], "target 'cpu' is not known"),
        (["show", "--store", __file__], "is a file; give a folder"),
    ],
)
def test_bad_input_is_one_paragraph_and_exit_code_2(run: Run, words: list[str], said: str) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert "defect" not in err


def test_a_store_that_the_environment_names_must_be_there(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PACELINE_KERNEL_STORE", str(tmp_path / "gone"))
    code, _, err = run("report")
    assert code == 2
    assert "PACELINE_KERNEL_STORE" in err


def test_what_tune_wrote_is_found_without_being_named(run: Run, tmp_path: Path) -> None:
    stored(tmp_path / "data" / "paceline" / "kernels")
    assert "254.2" in run("report", "--on", "MI300X", "--m", "16")[1]
    assert "50%-80%" in run("show")[1]


def test_show_lists_tables_by_class_with_what_they_reached(run: Run, store: Path) -> None:
    code, out, _ = run("show", "--store", str(store), "--on", "MI300X", "--model", "gpt-oss-120b")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].endswith("gfx942-304cu-192gb-AMD_Instinct_MI300X")
    assert lines[2].split() == [
        "gpt-oss-120b",
        "E=128",
        "N=2880",
        "mxfp4_w4a16",
        "16-64",
        "(2)",
        "measured",
        "ours",
        "2026-11-20",
        "50%-80%",
    ]
    code, out, _ = run("show", "--store", str(store), "--json")
    (table,) = [table for table in json.loads(out)["tables"] if str(store) in table["folder"]]
    assert (table["keys"], table["kernel"], table["of_floor"]) == ([16, 64], "ours", {"best": 0.8, "worst": 0.5})
    code, out, _ = run("show", "--store", str(store), "--on", "H200", "--model", "DeepSeek-V4-Pro")
    assert code == 0
    assert "no table of DeepSeek-V4-Pro for H200 in" in out


def test_show_on_an_accelerator_leaves_out_others_of_its_target_and_says_what_it_did_not_find(run: Run) -> None:
    def classes(*on: str) -> set[str]:
        return {table["node_class"].rpartition("_")[2] for table in json.loads(run("show", "--json", *on)[1])["tables"]}

    assert classes("--on", "MI300X") == {"MI300X"}
    assert classes("--on", "gfx942,h200") == {"MI300X", "MI325X", "H200"}
    assert classes() == {"MI355X", "MI300X", "MI325X", "H200"}
    assert run("show", "--model", "DeepSeek-V4-Pro", "--on", "H200")[1].startswith("no table of DeepSeek-V4-Pro for H200 in ")


def test_a_table_of_another_kernel_is_shown_as_such_and_is_a_problem(run: Run, tmp_path: Path) -> None:
    root = stored(tmp_path, "0123456789ab")
    assert " other " in run("show", "--store", str(root))[1]
    code, out, _ = run("check", str(root))
    assert code == 1
    assert f"is for kernel 0123456789ab and this kernel is {kernel_hash()}" in out
    _, out, err = run("report", "--on", "MI300X", "--m", "16", "--store", str(root))
    assert "store: " in err
    assert "0123456789ab" in err
    assert "254.2" not in out


def test_check_tells_each_problem_and_exits_with_1(run: Run, store: Path) -> None:
    assert run("check", str(store)) == (0, "1 table read, nothing wrong\n", "")
    (folder,) = store.iterdir()
    path = next(one for one in folder.iterdir() if not one.name.endswith(".about.json"))
    (folder / "notes.json").write_text("{}")
    (folder / "E=8,N=7168,device_name=NVIDIA_H200.json").write_text('{"16": {"BLOCK_SIZE_M": 16}}')
    path.write_text("{\n")
    code, out, _ = run("check", str(store), str(store / "gone"))
    assert code == 1
    assert out.splitlines()[-1] == "0 tables read, 4 problems"
    assert f"{path}:2: no JSON" in out
    assert "notes.json: not named as a table is" in out
    assert "BLOCK_SIZE_N is missing" in out
    assert "gone: cannot be read" in out
    path.unlink()
    code, out, _ = run("check", str(store), "--json")
    found = json.loads(out)
    assert code == 1
    assert len(found["problems"]) == 3
    assert f"its table, {path.name}, is not beside it" in str(found)
    assert about_path(path).is_file()


def test_check_tells_of_a_folder_that_is_not_named_as_a_class(run: Run, store: Path) -> None:
    (folder,) = store.iterdir()
    folder.rename(store / "MI300X")
    (store / ".tuning").mkdir()
    code, out, _ = run("check", str(store))
    assert code == 1
    assert out.splitlines()[0].startswith(f"{store / 'MI300X'}: holds tables and is not named as a class of node is")
    assert out.splitlines()[1:] == ["0 tables read, 1 problem"]


def test_an_empty_folder_has_nothing_to_check(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("check", str(tmp_path))
    assert code == 1
    assert "has no table" in out


def test_faster_than_the_memory_allows_is_a_problem(run: Run, store: Path) -> None:
    (beside,) = store.glob("*/*.about.json")
    facts = json.loads(beside.read_text())
    facts["keys"]["16"] = {"us": 100.0, "floor_us": 127.1, "of_floor": 1.271}
    beside.write_text(json.dumps(facts))
    assert "of_floor = 1.271: faster than the memory allows" in run("check", str(store))[1]


def test_shipped_tables_have_nothing_wrong_and_no_times(run: Run) -> None:
    code, out, _ = run("check", str(SHIPPED))
    assert code == 0, out
    _, out, _ = run("show", "--json")
    assert {table["origin"] for table in json.loads(out)["tables"]} == {"untimed"}
