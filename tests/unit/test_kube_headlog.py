"""What a head has said is kept once, whatever of it is here already and however it is written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from harness.cluster.kube.api import Api
from harness.cluster.kube.headlog import keep_head_log
from harness.records.layout import RunFolder

Json = dict[str, Any]


class HeadPod:
    """An Api with one head pod and its log."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        self.phase = "Running"

    async def list(self, kind: str, **_: Any) -> list[Json]:
        meta = {"name": "run-a-head-x", "uid": "u", "labels": {"app.kubernetes.io/component": "head"}}
        return [{"kind": kind, "metadata": meta, "spec": {"nodeName": "cpu-1"}, "status": {"phase": self.phase}}]

    async def log(self, pod: str, **_: Any) -> AsyncIterator[str]:
        for second, line in enumerate(self.lines):
            yield f"2023-11-14T22:13:{20 + 2 * second:02d}Z {line}"


async def keep(pod: HeadPod, folder: RunFolder) -> list[str]:
    await keep_head_log(cast(Api, pod), folder)
    return folder.log("head").read_bytes().decode().removesuffix("\n").split("\n")


@pytest.mark.parametrize(
    "last", ["plain", "half\rdrawn over", "2023-11-14 22:13:26,500 INFO with a time", "a page\x0cof two", ""]
)
async def test_no_line_is_kept_twice_whatever_is_in_it(tmp_path: Path, last: str) -> None:
    pod = HeadPod("first", "", "third", last)
    before = await keep(pod, RunFolder(tmp_path))
    assert len(before) == 5
    assert await keep(pod, RunFolder(tmp_path)) == before
    pod.lines.append("news")
    pod.phase = "Failed"
    after = await keep(pod, RunFolder(tmp_path))
    assert after[:5] == before
    assert after[5].endswith(" news")
    assert "has ended" in after[6]
    assert await keep(pod, RunFolder(tmp_path)) == after


async def test_a_last_line_that_was_cut_off_does_not_bring_all_of_them_again(tmp_path: Path) -> None:
    """As a machine leaves it that lost power."""
    pod = HeadPod("first", "second", "third")
    kept = await keep(pod, RunFolder(tmp_path))
    log = RunFolder(tmp_path).log("head")
    log.write_text("\n".join([*kept[:3], "2023-11-14 22:13:24.000+00:00 thi", ""]))
    again = await keep(pod, RunFolder(tmp_path))
    assert [line.rsplit(" ", 1)[-1] for line in again[1:]] == ["first", "second", "thi", "third"]


async def test_lines_that_repeat_are_all_kept(tmp_path: Path) -> None:
    pod = HeadPod("waiting", "waiting")
    await keep(pod, RunFolder(tmp_path))
    pod.lines += ["news", "waiting", "", ""]
    kept = await keep(pod, RunFolder(tmp_path))
    assert [line.rsplit(" ", 1)[-1] for line in kept[1:]] == ["waiting", "waiting", "news", "waiting", "", ""]
    assert await keep(pod, RunFolder(tmp_path)) == kept
