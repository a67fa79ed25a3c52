"""The guarded pickle loader: DataFrames of pandas 2 and 3 without pandas, and nothing else.

tests/data/dataframe_*.pkl were written by pandas 2.3 and 3.1 from made-up content:
DataFrame(text_input, dataset, ground_truth, tok_input, tok_ref_output_len, ref_accuracy).to_pickle(path, protocol=n).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import pickletools
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.datasets import DatasetError, load
from harness.datasets.pickles import read_columns
from harness.spec import RunSpec

DATA = Path(__file__).parents[1] / "data"
FRAMES = sorted(DATA.glob("dataframe_*.pkl"))


def spec_of(path: Path) -> RunSpec:
    return RunSpec.model_validate({"dataset": {"kind": "mlperf-pickle", "path": str(path)}})


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: path.stem)
def test_a_dataframe_is_read_without_pandas(path: Path) -> None:
    columns = read_columns(path)
    assert list(columns) == ["text_input", "dataset", "ground_truth", "tok_input", "tok_ref_output_len", "ref_accuracy"]
    assert columns["text_input"][2] == "synthetic question 2: what is 2 + 2?"
    assert columns["ground_truth"] == [str(2 * i) for i in range(6)]
    assert columns["ref_accuracy"] == [100.0] * 6
    dataset = load(spec_of(path))
    for i in range(6):
        assert np.frombuffer(dataset.prompt(i), "<i4").tolist() == [100 + i, 200 + i, 7, *[9] * i]
    assert dataset.expected_tokens.tolist() == [0, 10, 20, 30, 40, 50]


class Runs:
    """Pickles to a call of `function`."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_something_is_refused_by_name(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "ran"
    for function, args, named in (
        (os.system, (f"touch {trace}",), "posix.system"),
        (eval, (f"open({str(trace)!r}, 'w')",), "builtins.eval"),
        (exec, ("1",), "builtins.exec"),
        (np.fromfile, (str(trace),), "fromfile"),
    ):
        path = tmp_path / "evil.pkl"
        path.write_bytes(pickle.dumps({"tok_input": [Runs(function, *args)]}, protocol=protocol))
        with pytest.raises(DatasetError, match="refused") as caught:
            load(spec_of(path))
        assert named in str(caught.value)
    assert not trace.exists()


def test_every_name_a_hostile_file_may_still_use_is_a_class_that_only_keeps(tmp_path: Path) -> None:
    """Setting state on a named class itself (BUILD) must not change it for the next file."""
    path = tmp_path / "build.pkl"
    for module, name in (("pandas", "DataFrame"), ("_codecs", "encode"), ("builtins", "slice")):
        attack = b"\x80\x04" + b"c" + f"{module}\n{name}\n".encode() + b"N}(\x8c\x04args\x8c\x04evilu\x86b."
        pickletools.dis(attack, out=(tmp_path / "dis").open("w"))
        path.write_bytes(attack)
        with pytest.raises(DatasetError):
            load(spec_of(path))
    assert len(load(spec_of(FRAMES[0]))) == 6


def test_other_pickles_are_told_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "other.pkl"
    path.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(DatasetError, match="holds a list, not a pandas DataFrame"):
        load(spec_of(path))
    path.write_bytes(b"tok_input,text\n")
    with pytest.raises(DatasetError, match="is not a whole pickle"):
        load(spec_of(path))


def test_five_bytes_cannot_take_the_machines_memory(tmp_path: Path) -> None:
    path = tmp_path / "greedy.pkl"
    path.write_bytes(b"\x80\x04Nr\xff\xff\xff\xff.")  # "remember this under number 4294967295": a table of 64 GB
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(DatasetError, match="more memory than"):
        load(spec_of(path))
    assert resource.getrlimit(resource.RLIMIT_AS) == before


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_pickle_loads_or_ends_in_a_clear_error(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from(FRAMES)).read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    else:
        for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
            content[at] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path_factory.getbasetemp() / "damaged.pkl"
    path.write_bytes(content)
    with contextlib.suppress(DatasetError):
        load(spec_of(path))
