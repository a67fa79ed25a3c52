"""The roofline report: floors to the digit, times only where they were measured, a person's bandwidths, and its chart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernels.accelerators import accelerator, accelerators
from kernels.chart import check_target, draw
from kernels.datasheets import read_accelerators
from kernels.errors import KernelInputError
from kernels.identity import kernel_hash
from kernels.report import MS, BenchTime, key_of, report
from kernels.roofline import active_experts, floor
from kernels.shapes import MoeShape, model
from kernels.store import About, KeyFacts, class_folder, of_accelerator, write_table, write_vllm_table
from kernels.tile import LayerConfig, Tile

GPT = model("gpt-oss-120b")
MI300X = accelerator("MI300X")


def split(name: str, *, tp: int = 1, ep: int = 1) -> MoeShape:
    return model(name).split(tp=tp, ep=ep)


#: Floors in µs at M = 1, 2, 4 … 512, as published figures of bandwidth give them.
FLOORS = [
    (GPT, "MI355X", "6.6 13.0 25.2 47.4 84.2 135 184 208 211 212"),
    (GPT, "MI300X", "10.0 19.6 38.1 71.6 127 204 277 314 319 319"),
    (GPT, "H200", "11.0 21.7 42.0 79.1 140 225 306 346 352 353"),
    (split("DeepSeek-R1", ep=8), "MI355X", "5.5 10.8 21.0 39.5 70.2 112 153 173 176 176"),
    (split("DeepSeek-R1", ep=8), "H200", "9.2 18.1 35 65.9 117 187 255 289 294 294"),
    (model("DeepSeek-R1-MXFP4"), "MI300X", "35 70 135 253 450 721 982 1111 1130 1130"),
    (model("DeepSeek-V4-Flash"), "MI300X", "15.1 29.9 58.4 112 204 343 504 615 644 646"),
    (split("DeepSeek-V4-Flash", tp=8), "MI300X", "1.9 3.7 7.3 14.0 25.5 42.9 63.0 76.8 80.5 80.7"),
]


@pytest.mark.parametrize(("shape", "on", "quoted"), FLOORS)
def test_floors_are_those_that_were_quoted_to_the_digit(shape: MoeShape, on: str, quoted: str) -> None:
    for m, text in zip(MS, quoted.split(), strict=True):
        digits = len(text.partition(".")[2])
        assert f"{floor(shape, m, accelerator(on)).us:.{digits}f}" == text, m


def test_experts_and_bytes_are_those_of_the_experts_that_tokens_touch() -> None:
    touched = [active_experts(GPT, m) for m in MS]
    assert " ".join(f"{one:.3g}" for one in touched) == "4 7.88 15.3 28.7 51 81.7 111 126 128 128"
    megabytes = [floor(GPT, m, MI300X).weight_bytes / 1e6 for m in MS]
    assert " ".join(f"{one:.0f}" for one in megabytes) == "53 104 202 380 674 1079 1470 1663 1692 1692"


def test_a_published_table_against_the_floor_of_its_padded_weights() -> None:
    """ROCm's tuned table of this layer on gfx950, padded to 3072: what it says against what the memory allows."""
    microseconds = (39.1, 48.9, 64.2, 97.8, 148, 235, 291, 319)
    padded = (3072 / 2880) ** 2
    ratios = [us / (floor(GPT, m, accelerator("MI355X")).us * padded) for m, us in zip(MS, microseconds, strict=False)]
    assert " ".join(f"{ratio:.3g}" for ratio in ratios) == "5.2 3.3 2.24 1.81 1.54 1.53 1.39 1.35"


def test_operations_bound_the_time_where_experts_have_many_tokens() -> None:
    few, many = floor(GPT, 512, accelerator("H200")), floor(GPT, 8192, accelerator("H200"))
    assert (few.bound, many.bound) == ("bytes", "operations")
    assert many.us == pytest.approx(2 * 8192 * 4 * 3 * 2880 * 2880 / 989e12 * 1e6)


def test_operations_on_8_bits_have_twice_the_peak() -> None:
    r1, of_4_bits, on = model("DeepSeek-R1"), model("DeepSeek-R1-MXFP4"), accelerator("H200")
    assert floor(r1, 16384, on).flops_us == pytest.approx(floor(of_4_bits, 16384, on).flops_us / 2)
    assert floor(of_4_bits, 16384, on).us == pytest.approx(2 * 16384 * 8 * 3 * 7168 * 2048 / 989e12 * 1e6)


# --- times ---------------------------------------------------------------------------------------------------


def measured_store(root: Path) -> Path:
    of = of_accelerator(MI300X)
    keys = {m: KeyFacts(us=us, floor_us=100.0, of_floor=100.0 / us) for m, us in ((16, 180.0), (64, 360.0))}
    about = About(GPT, of.target, of.compute_units, of.memory_gb, of.device_name, "measured", kernel_hash(), "3.9.0", keys=keys)
    down = LayerConfig(Tile(16, 64, 256), Tile(16, 128, 128))
    return write_table(class_folder(root, of), {16: down, 64: LayerConfig()}, about)


def test_a_time_stands_only_where_it_was_measured(tmp_path: Path) -> None:
    path = measured_store(tmp_path)
    (mine, other) = report([GPT], (8, 16, 64), [MI300X, accelerator("MI325X")], [tmp_path])
    assert [row.measured_us for row in mine.rows] == [None, 180.0, 360.0]
    assert [row.config for row in mine.rows] == ["nearest", "tuned", "tuned"]
    assert [row.key for row in mine.rows] == [16, 16, 64]
    assert mine.rows[1].of_floor == pytest.approx(mine.rows[1].floor_us / 180.0)
    assert mine.rows[1].source == str(path)
    assert mine.rows[1].tile == "16x64x256/4/2 16x128x128/4/2"
    assert [(row.measured_us, row.config) for row in other.rows] == [(None, "default")] * 3


def test_a_table_that_cannot_be_used_takes_nothing_from_the_floors(tmp_path: Path) -> None:
    measured_store(tmp_path).write_text("{")
    (block,) = report([GPT], (16,), [MI300X], [tmp_path])
    assert "no JSON" in block.note
    assert (block.rows[0].measured_us, block.rows[0].config) == (None, "")
    assert block.rows[0].floor_us == pytest.approx(127.1, abs=0.1)


def test_a_layer_of_other_weights_has_vllms_table_and_what_was_measured_with_it(tmp_path: Path) -> None:
    r1, of = model("DeepSeek-R1"), of_accelerator(MI300X)
    config = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 2}
    about = About(
        r1, of.target, of.compute_units, of.memory_gb, of.device_name, "measured", "",
        engine="vllm 0.33.0", keys={16: KeyFacts(us=900.0)},
    )  # fmt: skip
    write_vllm_table(
        class_folder(tmp_path, of), r1, of.device_name, "fp8_w8a8", {16: config}, block_shape=(128, 128), about=about
    )
    (block,) = report([r1], (1, 16), [MI300X], [tmp_path])
    assert [(row.config, row.key, row.measured_us) for row in block.rows] == [("vllm", 16, None), ("vllm", 16, 900.0)]
    (none,) = report([r1], (1,), [accelerator("H200")], [tmp_path])
    assert none.rows[0].config == ""


def test_times_of_a_benchmarks_file_count_for_their_layer_target_and_tokens(tmp_path: Path) -> None:
    of = key_of(GPT)
    times = [
        BenchTime(of, "gfx942", 16, 170.0, "b.json"),
        BenchTime(of, "sm_90", 16, 1.0, "c.json"),
        BenchTime(of, "gfx942", 1, 1.0, ""),
    ]
    measured_store(tmp_path)
    (block,) = report([GPT], (16, 64), [MI300X], [tmp_path], times)
    assert [(row.measured_us, Path(row.source).name[:1]) for row in block.rows] == [(170.0, "b"), (360.0, "E")]


def test_a_floor_at_one_number_of_tokens_is_drawn_and_ranks_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    marks: list[object] = []
    titles: list[str] = []
    monkeypatch.setattr(Axes, "plot", lambda axes, *data, marker="", **_: marks.append(marker))
    monkeypatch.setattr(Axes, "set_title", lambda axes, text, **_: titles.append(text))
    monkeypatch.setattr(Axes, "legend", lambda axes, **_: None)
    r1 = model("DeepSeek-R1").split(ep=8)
    draw(report([r1], (64,), [MI300X], []), tmp_path / "one.png")
    draw(report([r1], (1, 64), [MI300X], []), tmp_path / "two.png")
    assert marks == ["_", ""]
    assert titles[0].startswith("DeepSeek-R1: 32 of 256 experts, top 8\nH 7168, I 2048, fp8")


def test_a_drawn_floor_is_the_floor_between_the_numbers_of_tokens_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    drawn: dict[int, float] = {}
    monkeypatch.setattr(Axes, "plot", lambda axes, tokens, us, **_: drawn.update(zip(tokens, us, strict=True)))
    monkeypatch.setattr(Axes, "legend", lambda axes, **_: None)
    draw(report([GPT], (4, 1024), [MI300X], []), tmp_path / "few.png")
    assert (min(drawn), max(drawn)) == (4, 1024)
    assert drawn[64] == pytest.approx(floor(GPT, 64, MI300X).us)


# --- accelerators of a person --------------------------------------------------------------------------------


def test_a_persons_file_changes_known_accelerators_and_adds_others(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        "[mi300x]\nbandwidth_tb_s = 4\n[MI400]\ntarget = 'gfx950'\nbandwidth_tb_s = 19.6\nbf16_tflops = 10000\n"
        "compute_units = 256\nshared_kib = 160\nmemory_gb = 432\n"
    )
    found = read_accelerators(path, accelerators())
    assert found["MI300X"].bandwidth_tb_s == 4.0
    assert found["MI300X"].compute_units == MI300X.compute_units
    assert accelerator("mi400", found).memory_gb == 432
    assert accelerators()["MI300X"].bandwidth_tb_s == 5.3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[MI300X", "no TOML"),
        ("", "changes nothing"),
        ("MI300X = 5", "MI300X = 5 must be a table"),
        ("[MI300X]\nbandwidth_tb_s = 0", "bandwidth_tb_s = 0 must be a number over 0"),
        ("[MI300X]\nbandwidth_tb_s = nan", "bandwidth_tb_s = nan must be"),
        ("[MI300X]\nbandwidth_tb_s = 4300", "bandwidth_tb_s = 4300 must be a number over 0, at most 100, in terabytes a second"),
        ("[MI300X]\nbandwidth = 4", "bandwidth is not known; known: target, bandwidth_tb_s"),
        ("[MI300X]\ntarget = 'gfx90a'", "target = 'gfx90a' must be one of gfx942"),
        ("[MI300X]\ncompute_units = 1.5", "compute_units = 1.5 must be a whole number"),
        ("[MI300X]\ndevice_names = []", "device_names = [] must be a list of names"),
        (
            "[New]\nbandwidth_tb_s = 4",
            "target, bf16_tflops, compute_units, shared_kib, memory_gb: missing; an accelerator that is not known needs them",
        ),
    ],
)
def test_what_is_wrong_in_a_persons_file_is_told(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(KernelInputError) as caught:
        read_accelerators(path, accelerators())
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


# --- chart ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("suffix", "begins"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_a_chart_is_written_in_the_form_that_its_name_says(tmp_path: Path, suffix: str, begins: bytes) -> None:
    measured_store(tmp_path / "store")
    shapes = [GPT] if suffix != "svg" else [GPT, model("gpt-oss-20b")]
    blocks = report(shapes, (1, 16, 64), [MI300X, accelerator("H200")], [tmp_path / "store"])
    draw(blocks, tmp_path / f"floors.{suffix}")
    assert (tmp_path / f"floors.{suffix}").read_bytes().startswith(begins)
    assert sorted(one.name for one in tmp_path.iterdir()) == [f"floors.{suffix}", "store"]


@pytest.mark.parametrize(
    ("name", "said"), [("a.gif", "must end in .svg, .png, .pdf"), ("gone/a.svg", "is no folder"), ("", "must end")]
)
def test_a_chart_that_cannot_be_is_refused(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(KernelInputError, match=said):
        draw([], tmp_path / name)


def test_rows_are_what_json_has() -> None:
    (block,) = report([GPT], (1,), [MI300X], [])
    assert json.loads(json.dumps(block.rows[0].json()))["bound"] == "bytes"


@pytest.mark.parametrize(
    ("text", "said"),
    [("[MI300X]\nbandwidth_tb_s = 1" + "0" * 400, "must be a number over 0"), ("#" * 1_000_001, "more than 1,000,000 bytes")],
)
def test_hostile_figures_of_accelerators_are_told(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(KernelInputError, match=said) as caught:
        read_accelerators(path, accelerators())
    assert len(str(caught.value)) < 400


def test_a_chart_whose_name_is_too_long_is_told(tmp_path: Path) -> None:
    with pytest.raises(KernelInputError, match="cannot be written: File name too long"):
        check_target(tmp_path / ("a" * 300 + ".svg"))
