"""Datasets from files and from lengths: what is read, and what is said when a file is wrong."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.datasets import Dataset, DatasetError, load
from harness.spec import RunSpec

DEEPSEEK = Path(__file__).parents[2].parent / "shared/data/deepseek_r1_samples.jsonl"


def spec_of(kind: str, path: Path | None = None, **more: Any) -> RunSpec:
    dataset = {"kind": kind, **more} | ({"path": str(path)} if path else {})
    return RunSpec.model_validate({"dataset": dataset})


def jsonl(folder: Path, *rows: Any) -> Path:
    path = folder / "samples.jsonl"
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def ids(dataset: Dataset, i: int) -> list[int]:
    return np.frombuffer(dataset.prompt(i), "<i4").tolist()


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"[?]": 0, "how": 7, "many": 8, "tokens": 9}, unk_token="[?]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    words.save(str(folder / "tokenizer.json"))
    return folder


def test_a_prompt_is_a_view_of_the_flat_array_in_little_endian_int32(tmp_path: Path) -> None:
    dataset = load(spec_of("jsonl", jsonl(tmp_path, {"tok_input": [1, 2]}, {"tok_input": [2**31 - 1]})))
    assert bytes(dataset.prompt(0)) == b"\x01\0\0\0\x02\0\0\0"
    assert bytes(dataset.prompt(1)) == b"\xff\xff\xff\x7f"
    assert (len(dataset), dataset.n_prompt(0), dataset.n_prompt(1)) == (2, 2, 1)
    assert dataset.prompt(1).readonly
    dataset.prompts[2] = 5
    assert ids(dataset, 1) == [5], "shares memory"


def test_jsonl_takes_the_first_known_name_and_known_output_lengths(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path,
        {"input_tokens": [1], "tok_input": [9, 9], "tok_ref_output_len": 12, "tok_ref_output": [1, 2]},
        "\n",
        {"input_tokens": None, "tok_input": [4, 5], "tok_ref_output": [1, 2, 3]},
        {"tok_input": [6], "output_tokens": [1, 2]},
        {"tok_input": [7], "tok_model_output_len": None},
    )
    dataset = load(spec_of("jsonl", path))
    assert [ids(dataset, i) for i in range(len(dataset))] == [[1], [4, 5], [6], [7]]
    assert dataset.expected_tokens.tolist() == [12, 3, 2, 0]
    assert len(load(spec_of("jsonl", path, samples=2))) == 2
    assert load(spec_of("jsonl", Path("samples.jsonl")), base=tmp_path).name == "samples.jsonl"


@pytest.mark.skipif(not DEEPSEEK.exists(), reason="the five DeepSeek-R1 samples are not beside this checkout")
def test_the_deepseek_r1_samples_load_as_they_are() -> None:
    dataset = load(spec_of("jsonl", DEEPSEEK))
    rows = [json.loads(line) for line in DEEPSEEK.read_text().splitlines()]
    assert [ids(dataset, i) for i in range(5)] == [row["tok_input"] for row in rows]
    assert dataset.expected_tokens.tolist() == [5749, 1631, 1427, 5950, 2541]


def test_text_is_encoded_with_a_local_tokenizer(tmp_path: Path, tokenizer: Path) -> None:
    path = jsonl(tmp_path, {"prompt": "how many tokens"}, {"tok_input": [3]}, {"text": "how tokens"})
    for named in (tokenizer, tokenizer / "tokenizer.json"):
        dataset = load(spec_of("jsonl", path, tokenizer=str(named)))
        assert [ids(dataset, i) for i in range(3)] == [[7, 8, 9], [3], [7, 9]]


def test_parquet_gives_what_jsonl_gives(tmp_path: Path, tokenizer: Path) -> None:
    path = tmp_path / "samples.parquet"
    for kind in (pl.List(pl.Int64), pl.List(pl.UInt16)):
        pl.DataFrame(
            {
                "tok_input": pl.Series([[1, 2], [3], [4, 5, 6]], dtype=kind),
                "tok_ref_output_len": [7, None, 9],
                "dataset": ["a"] * 3,
            }
        ).write_parquet(path)
        dataset = load(spec_of("parquet", path))
        assert [ids(dataset, i) for i in range(3)] == [[1, 2], [3], [4, 5, 6]]
        assert dataset.expected_tokens.tolist() == [7, 0, 9]
        assert len(load(spec_of("parquet", path, samples=2))) == 2
    pl.DataFrame({"text_input": ["how many", "tokens"]}).write_parquet(path)
    assert ids(load(spec_of("parquet", path, tokenizer=str(tokenizer))), 0) == [7, 8]


def test_lengths_hold_their_mean_and_bounds_and_follow_the_seed() -> None:
    shape = {"mean": 900, "sigma": 1.2, "min": 10, "max": 3000}
    dataset = load(
        spec_of("lengths", samples=3000, input_tokens=shape, output_tokens={"mean": 50, "sigma": 0, "min": 2, "max": 60})
    )
    lengths = np.diff(dataset.offsets)
    assert abs(lengths.mean() - 900) < 1
    assert lengths.min() >= 10
    assert lengths.max() == 3000
    assert set(dataset.expected_tokens.tolist()) == {50}
    assert dataset.prompts.min() >= 3
    assert dataset.prompts.max() < 32000
    again = load(
        spec_of("lengths", samples=3000, input_tokens=shape, output_tokens={"mean": 50, "sigma": 0, "min": 2, "max": 60})
    )
    assert np.array_equal(dataset.prompts, again.prompts)
    assert not np.array_equal(load(spec_of("lengths", seed=2)).prompts[:50], load(spec_of("lengths")).prompts[:50])
    assert len(load(spec_of("lengths"))) == 2000


@given(low=st.integers(1, 200), more=st.integers(0, 5000), at=st.floats(0, 1), sigma=st.floats(0, 3), samples=st.integers(1, 300))
@settings(max_examples=60, deadline=None)
def test_any_length_distribution_stays_inside_its_bounds(low: int, more: int, at: float, sigma: float, samples: int) -> None:
    mean = min(low + at * more, low + more)
    shape = {"mean": mean, "sigma": sigma, "min": low, "max": low + more}
    lengths = np.diff(load(spec_of("lengths", samples=samples, input_tokens=shape)).offsets)
    assert len(lengths) == samples
    assert low <= lengths.min() <= lengths.max() <= low + more
    assert abs(lengths.mean() - mean) <= 1 + 0.5 / samples


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{broken\n", "line 2: is not JSON"),
        ("[1, 2]\n", "line 2: is a list, not an object"),
        ({"question": "?"}, "line 2: has neither token ids (input_tokens or tok_input) nor text"),
        ({"tok_input": []}, "line 2: tok_input is empty"),
        ({"tok_input": "1 2"}, "line 2: tok_input is '1 2', not a list of token ids"),
        ({"tok_input": [1, -2]}, "line 2: tok_input[1] is -2; token ids are whole numbers from 0 to 2^31 - 1"),
        ({"tok_input": [2**31]}, "line 2: tok_input[0] is 2147483648"),
        ({"tok_input": [1, 2.0]}, "line 2: tok_input[1] is 2.0"),
        ({"tok_input": [1, True]}, "line 2: tok_input[1] is True"),
        ({"tok_input": [1], "tok_ref_output_len": "many"}, "line 2: tok_ref_output_len is 'many'"),
        ({"tok_input": [1], "tok_ref_output_len": -1}, "line 2: tok_ref_output_len is -1"),
        ({"text": "how many"}, "line 2: holds text only (field text) and dataset.tokenizer is not set"),
        ({"text": 5}, "line 2: text is a int, not text"),
    ],
)
def test_a_wrong_line_is_named_with_field_and_value(tmp_path: Path, row: Any, said: str) -> None:
    with pytest.raises(DatasetError) as caught:
        load(spec_of("jsonl", jsonl(tmp_path, {"tok_input": [1]}, row)))
    assert said in str(caught.value)
    assert "samples.jsonl" in str(caught.value)


def test_missing_empty_and_foreign_files_are_told_apart(tmp_path: Path, tokenizer: Path) -> None:
    def said(kind: str, path: Path, **more: Any) -> str:
        with pytest.raises(DatasetError) as caught:
            load(spec_of(kind, path, **more))
        return str(caught.value)

    assert "does not exist" in said("jsonl", tmp_path / "none.jsonl")
    assert "is a folder" in said("parquet", tmp_path)
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    for kind in ("jsonl", "parquet", "mlperf-pickle"):
        assert "is empty" in said(kind, empty)
    one = jsonl(tmp_path, {"tok_input": [1]})
    assert "is not a whole parquet file" in said("parquet", one)
    assert "has 1 samples, dataset.samples = 2 asks for more" in said("jsonl", one, samples=2)
    text = jsonl(tmp_path, {"text": "how"})
    assert "tokenizer.json" in said("jsonl", text, tokenizer=str(tmp_path / "elsewhere"))
    (tokenizer / "tokenizer.json").write_text("{}")
    assert "is not a tokenizer.json" in said("jsonl", text, tokenizer=str(tokenizer))


def test_a_wrong_parquet_column_is_named_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "samples.parquet"

    def said(**columns: Any) -> str:
        pl.DataFrame(columns).write_parquet(path)
        with pytest.raises(DatasetError) as caught:
            load(spec_of("parquet", path))
        return str(caught.value)

    assert "row 1: tok_input[0] is -4" in said(tok_input=[[1, 2], [-4]])
    assert "row 0: tok_input[1] is 2147483648" in said(tok_input=[[1, 2**31]])
    assert "row 1: tok_input[1] is None" in said(tok_input=[[1, 2], [3, None]])
    assert "row 1: tok_input is empty" in said(tok_input=[[1, 2], []])
    assert "tok_input has type" in said(tok_input=[1, 2])
    assert "tok_input has type" in said(tok_input=[["1"], ["2"]])
    assert "it has question" in said(question=["?"])
    assert "is empty" in said(tok_input=pl.Series([], dtype=pl.List(pl.Int64)))
    assert "row 0: tok_ref_output_len is 'x'" in said(tok_input=[[1]], tok_ref_output_len=["x"])


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_a_truncated_file_loads_or_ends_in_a_clear_error(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp()
    kind = data.draw(st.sampled_from(["jsonl", "parquet"]))
    path = folder / f"cut.{kind}"
    if kind == "jsonl":
        content = b"".join(json.dumps({"tok_input": [n, n + 1], "output_tokens": n}).encode() + b"\n" for n in range(5))
    else:
        pl.DataFrame({"tok_input": [[n, n + 1] for n in range(5)], "output_tokens": list(range(5))}).write_parquet(path)
        content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with contextlib.suppress(DatasetError):
        dataset = load(spec_of(kind, path))
        assert [ids(dataset, i) for i in range(len(dataset))] == [[n, n + 1] for n in range(len(dataset))]
