"""What README.md prints works as printed: its spec, its query, its commands, its lists of files, fields and exit codes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from console.cli.app import build, main
from harness.datasets.fields import FIELDS
from harness.metricspec import GpuSourceSpec
from harness.records.layout import RunFolder
from harness.records.writer import RecordWriter
from harness.spec import DatasetSpec, KernelsSpec
from harness.specfile import load_spec, profiles
from harness.wire.attempt import SAMPLE_DTYPE

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def block(language: str, of: str = README) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", of, re.DOTALL | re.MULTILINE)
    return str(found)


def section(title: str) -> str:
    return README.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_the_spec_is_one_that_can_be_started(tmp_path: Path) -> None:
    path = tmp_path / "first.toml"
    path.write_text(block("toml", section("A spec")))
    spec = load_spec(str(path))
    assert spec.dataset.kind == "lengths"
    assert spec.expected_replicas == 16


def test_the_table_of_kernels_is_one_of_a_spec() -> None:
    asked = KernelsSpec.model_validate(tomllib.loads(block("toml", section("MoE kernels")))["fleet"]["kernels"])
    assert asked.moe == "paceline"
    assert asked.required


def test_the_query_reads_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    writer = RecordWriter(RunFolder(tmp_path / "runs" / "RUN"))
    rows = np.zeros(4, SAMPLE_DTYPE)
    rows["slot"], rows["first_ns"] = [0, 0, 1, 1], 250_000_000
    writer.samples(1, 1, rows, ["node000/gpu0", "node000/gpu1"])
    writer.flush()
    monkeypatch.chdir(tmp_path)
    exec(compile(block("python"), "README.md", "exec"), {})
    assert "node000/gpu1" in (shown := capsys.readouterr().out)
    assert "250.0" in shown


def test_every_command_is_in_the_list_of_commands() -> None:
    inner = {"head", "worker"}  # started by a run, seldom by a person
    commands = {name for name in build() if not name.startswith("-")} - inner
    assert {name for name in commands if not re.search(rf"\b{name}\b", section("Use"))} == set()


def test_the_layout_of_a_run_names_what_layout_py_names() -> None:
    told = set(re.findall(r"^([\w.]+)/?", section("How a run is laid out").partition("```")[2], re.MULTILINE))
    folder = RunFolder(Path("run"))
    members = [name for name, member in vars(RunFolder).items() if isinstance(member, property) and name != "name"]
    paths = [*(getattr(folder, name) for name in members), folder.attempt(1), folder.log("head")]
    names = {path.relative_to(folder.path).parts[0] for path in paths}
    assert len(names) == 18
    assert names - told == set()


def test_all_kinds_and_fields_of_datasets_and_all_profiles_are_told() -> None:
    told = section("A spec")
    kinds = DatasetSpec.model_json_schema()["properties"]["kind"]["enum"]
    assert [name for name in (*kinds, *FIELDS, *profiles()) if f"`{name}`" not in told] == []


def test_all_exit_codes_are_told() -> None:
    assert re.findall(r"^\| (\d+) \|", section("Use"), re.MULTILINE) == ["0", "1", "2", "3"]


def test_the_sources_of_gpu_metrics_are_written_as_a_spec_takes_them() -> None:
    rows = re.findall(r"^\| (.*?) \| (.*) \|$", section("Metrics"), re.MULTILINE)[1:]
    settings = ["\n".join(re.findall(r"`(\w+ = [^`]*)`", told)) for _, told in rows]
    assert len(settings) == 4
    assert all(GpuSourceSpec.model_validate(tomllib.loads(text)) for text in settings)


def test_every_option_of_the_section_about_metrics_exists(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("metrics", "doctor", "alerts", "demo"):
        main([name, "--help"])
    offered = capsys.readouterr().out
    lines = [line for line in section("Metrics").splitlines() if line.startswith("paceline ")]
    assert len(lines) == 7
    assert [option for line in lines for option in re.findall(r"--[a-z-]+", line) if option not in offered] == []
