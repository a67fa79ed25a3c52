"""A run found on a cluster gets a folder here; what lies there already is looked at first."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cluster.base import ClusterError
from harness.cluster.kube import discover
from harness.records.layout import RunFolder


@pytest.mark.parametrize("content", ["", "{", '{"fleet": {"nodes": -1}}', "[]"])
def test_a_spec_that_lies_there_and_cannot_be_read_is_named_with_what_to_do(tmp_path: Path, content: str) -> None:
    folder = RunFolder(tmp_path / "a-run")
    folder.path.mkdir()
    folder.spec_json.write_text(content)
    with pytest.raises(ClusterError, match=r"a-run/spec\.json is no spec of this version .*rename its folder"):
        discover._name_in(folder)
