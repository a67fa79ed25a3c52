"""Which kernels a vLLM loaded, from its log as it really writes it and from reports that may be anything."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.engines.vllm import kernelfacts
from harness.engines.vllm.kernelfacts import loaded
from harness.engines.vllm.logtail import LogTail
from harness.spec import KernelsSpec

OURS = KernelsSpec(moe="paceline")
#: As vLLM's loggers prefix them, in an engine core and in a worker.
CORE = "(EngineCore pid=4711) INFO 11-30 14:03:12 [{file}:{line}] {text}"
CLASS = "gfx950-256cu-288gb-AMD_Instinct_MI355X"
REPORT: dict[str, Any] = {
    "schema": 1, "pid": 12, "rank": 0, "kernel": "paceline-mxfp4-a16w4", "kernel_hash": "aa11bb22cc33", "node_class": CLASS,
    "device_name": "AMD_Instinct_MI355X", "target": "gfx950", "triton": "3.9.0", "torch": "2.14.0", "vllm": "0.33.0",
    "config": {"how": "tuned", "file": "/x.json", "hash": "0a1b2c3d4e5f", "keys": [16], "of_floor": {"64": 0.66, "16": 0.712}},
    "layers": 36, "vllm_tables": "", "fallback": "",
}  # fmt: skip


def said(text: str) -> str:
    return CORE.format(file="mxfp4.py", line=540, text=text)


def written(folder: Path, *reports: dict[str, Any] | str | bytes) -> Path:
    for number, report in enumerate(reports):
        content = json.dumps(report) if isinstance(report, dict) else report
        data = content.encode() if isinstance(content, str) else content
        (folder / f"{number}.json").write_bytes(data)
    return folder


@pytest.mark.parametrize(
    ("line", "kernel"),
    [
        ("Using 'AITER_MXFP4_BF16' Mxfp4 MoE backend.", "vLLM AITER_MXFP4_BF16 (Mxfp4)"),
        ("Using TRITON Unquantized MoE backend out of potential backends: ['TRITON', 'CPU'].", "vLLM TRITON (Unquantized)"),
        ("Using ROCm AITER Unquantized MoE backend out of potential backends: ['ROCm AITER'].", "vLLM ROCm AITER (Unquantized)"),
        ("Using DEEPGEMM Fp8 MoE backend out of potential backends: ['AITER', 'DEEPGEMM'].", "vLLM DEEPGEMM (Fp8)"),
        ("Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['B12X'].", "vLLM MARLIN (NvFp4)"),
        ("Using CPU_INT4 W4A8 Int8 MoE backend out of potential backends: ['CPU_INT4'].", "vLLM CPU_INT4 (W4A8 Int8)"),
        ("Using 'HUMMING' WNA16 MoE backend.", "vLLM HUMMING (WNA16)"),
        ("Using 'XPU' MxFp8 MoE backend (user-requested).", "vLLM XPU (MxFp8)"),
    ],
)
def test_the_backend_is_read_from_vllms_own_line(line: str, kernel: str) -> None:
    assert loaded(KernelsSpec(), None, [said(line)]).facts == {"kernel": kernel}


def test_lines_of_other_matters_are_none_of_a_kernels() -> None:
    lines = [
        "Using configuration from /x/N=512,K=512,dtype=fp8_w8a8.json for W8A8 Block FP8 kernel.",
        "FP8 MoE backend DEEPGEMM does not support the deployment configuration since it is too small.",
        "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'TRITON'].",
        "Using TritonExperts MoE backend",
    ]
    found = loaded(KernelsSpec(), None, [said(line) for line in lines])
    assert (found.facts, found.fallback) == ({}, "")


def test_a_table_of_vllms_is_told_by_its_name_and_the_hash_of_its_bytes(tmp_path: Path) -> None:
    table = tmp_path / "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8.json"
    table.write_text('{"16": {}}')
    lines = [said(f"Using configuration from {table} for MoE layer."), said("Using TRITON Fp8 MoE backend out of potential …")]
    assert loaded(KernelsSpec(), None, lines).facts == {
        "kernel": "vLLM TRITON (Fp8)",
        "kernel.config": table.name,
        "kernel.config_hash": hashlib.sha256(b'{"16": {}}').hexdigest()[:12],
    }
    none = said("Using default MoE config. Performance might be sub-optimal! Config file not found at /a.json, /b.json")
    assert loaded(KernelsSpec(), None, [none]).facts == {"kernel.config": "default"}
    table.unlink()
    assert "kernel.config_hash" not in loaded(KernelsSpec(), None, lines).facts


def test_the_log_is_read_from_this_engines_beginning_without_colours(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as file:
        file.write("Using 'MARLIN' Mxfp4 MoE backend.\n")
        file.flush()
        log = LogTail((file.fileno(),))
        os.write(file.fileno(), b"\x1b[0;36m(Worker)\x1b[0;0m Using \x1b[1m'TRITON'\x1b[0m Mxfp4 MoE backend.\n\xff\xfe\n")
        assert loaded(KernelsSpec(), None, log.beginning()).facts == {"kernel": "vLLM TRITON (Mxfp4)"}
        os.ftruncate(file.fileno(), 0)
        assert log.beginning() == []
        log.close()


def test_what_the_plugin_reports_counts_more_than_the_log(tmp_path: Path) -> None:
    found = loaded(OURS, written(tmp_path, REPORT), [said("Using 'MARLIN' Mxfp4 MoE backend.")])
    assert found.fallback == ""
    assert found.facts == {
        "kernel": "paceline-mxfp4-a16w4",
        "kernel.hash": "aa11bb22cc33",
        "kernel.config": "tuned",
        "kernel.config_hash": "0a1b2c3d4e5f",
        "kernel.node_class": CLASS,
        "kernel.of_floor": "M=16 71 %, M=64 66 %",
    }


def test_ranks_that_differ_are_told_together_and_one_that_fell_back_is_named(tmp_path: Path) -> None:
    other = {**REPORT, "config": {"how": "default", "file": "", "hash": "", "keys": [], "of_floor": {}}}
    back = {**REPORT, "kernel": "", "kernel_hash": "", "config": {}, "fallback": "no triton on this rank"}
    found = loaded(OURS, written(tmp_path, REPORT, other), [])
    assert (found.facts["kernel.config"], found.fallback) == ("default | tuned", "")
    mixed = loaded(OURS, written(tmp_path, REPORT, back), [said("Using 'MARLIN' Mxfp4 MoE backend.")])
    assert mixed.facts["kernel"] == "paceline-mxfp4-a16w4 | vLLM MARLIN (Mxfp4)"
    assert mixed.facts["kernel.fallback"] == mixed.fallback == "no triton on this rank"


def test_an_engine_that_fell_back_tells_its_class_its_reason_and_vllms_kernel(tmp_path: Path) -> None:
    back = {**REPORT, "kernel": "", "kernel_hash": "", "config": {}, "fallback": "vLLM 0.41 is newer\nthan what is known"}
    found = loaded(OURS, written(tmp_path, back, back), [said("Using 'MARLIN' Mxfp4 MoE backend.")])
    assert found.facts == {
        "kernel": "vLLM MARLIN (Mxfp4)",
        "kernel.node_class": CLASS,
        "kernel.fallback": "vLLM 0.41 is newer than what is known",
    }
    silent = loaded(OURS, tmp_path / "nothing", [])
    assert silent.fallback.startswith("the plugin tells of no layer")
    assert silent.facts == {"kernel.fallback": silent.fallback}
    assert loaded(KernelsSpec(), tmp_path, []).facts == {}, "nobody asked for it"


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"schema": 2}', b'"' + b"x" * 400_000 + b'"', b"[" * 100_000),
        json.dumps({**REPORT, "kernel": "x" * 300_000}).encode(),
    ],
)
def test_a_report_that_cannot_be_read_is_no_report(tmp_path: Path, content: bytes) -> None:
    found = loaded(OURS, written(tmp_path, content), [])
    assert found.facts == {"kernel.fallback": "none of the plugin's 1 reports can be read"}
    whole = loaded(OURS, written(tmp_path, content, REPORT), [])
    assert whole.facts["kernel.config"] == "tuned"


def test_a_refusal_says_what_is_wrong_after_the_path_of_a_table_and_the_fact_is_cut(tmp_path: Path) -> None:
    path = (
        "/mnt/kernels/gfx942-304cu-192gb-AMD_Instinct_MI300X/E=128,N=2880,device_name=AMD_Instinct_MI300X,dtype=mxfp4_w4a16.json"
    )
    back = {**REPORT, "kernel": "", "kernel_hash": "", "config": {}, "fallback": f"{path}:2: no JSON: Expecting value"}
    found = loaded(OURS, written(tmp_path, back), [])
    assert found.fallback == kernelfacts.left_out(OURS, tmp_path) == back["fallback"]
    assert len(found.facts["kernel.fallback"]) == 120


def test_fields_of_wrong_types_are_left_out(tmp_path: Path) -> None:
    floors: dict[str, Any] = {"16": "fast", "x": 0.5, "-4": 0.5, "8": True, "9" * 30: 0.5, "32": float("nan"), "64": 0.5}
    wrong = {**REPORT, "kernel_hash": 7, "node_class": None, "config": {"how": "best", "hash": ["a"], "of_floor": floors}}
    assert loaded(OURS, written(tmp_path, wrong), []).facts == {"kernel": "paceline-mxfp4-a16w4", "kernel.of_floor": "M=64 50 %"}
    for layers in (True, -1, "36", None, 0):
        assert loaded(OURS, written(tmp_path, {**REPORT, "layers": layers}), []).fallback
    huge = {**REPORT, "kernel": "k\x1b[31m" + "x" * 5000}
    told = loaded(OURS, written(tmp_path, huge), []).facts["kernel"]
    assert len(told) == 120
    assert "\x1b" not in told


def test_hugging_faces_package_of_the_same_name_is_told_before_vllm_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernelfacts.cannot_load(OURS) == ""
    monkeypatch.setattr(kernelfacts, "version", lambda name: "0.15.2")
    assert kernelfacts.cannot_load(KernelsSpec()) == ""
    assert "this environment has kernels 0.15.2 of Hugging Face" in kernelfacts.cannot_load(OURS)


def test_pipes_and_names_that_are_none_are_left_out_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "1.json")
    os.mkfifo(tmp_path / "table.json")
    paths = (tmp_path / "table.json", "/dev/zero", "/nul\0byte", tmp_path)
    log = [f"Using configuration from {path} for MoE layer." for path in paths]
    found = loaded(KernelsSpec(moe="paceline"), tmp_path, log)
    assert "can be read" in found.fallback
    assert "kernel.config_hash" not in found.facts
