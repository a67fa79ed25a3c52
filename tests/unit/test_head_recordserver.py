"""A record served file by file: what a copy needs, never keys, never anything outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.head.recordserver import files_of, part_of
from harness.records.layout import RunFolder
from harness.wire.inquiry import PART_BYTES, GetPart


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    (folder.path / "samples").mkdir(parents=True)
    (folder.path / "samples" / "000001.parquet").write_bytes(b"rows")
    (folder.path / "samples" / ".000002.parquet.tmp").write_bytes(b"half")
    folder.run_json.write_text("{}")
    folder.keys.mkdir()
    (folder.keys / "operator.key").write_text("secret")
    for private in (folder.lock, folder.reserve, folder.head_json, folder.workers_json):
        private.write_text("x")
    (tmp_path / "outside").write_text("not ours")
    (folder.path / "link").symlink_to(tmp_path / "outside")
    return folder


def test_listed_is_the_record_and_nothing_private(folder: RunFolder) -> None:
    assert [(file.path, file.size) for file in files_of(folder)] == [("run.json", 2), ("samples/000001.parquet", 4)]


def test_a_part_has_its_bytes_and_says_of_which_version(folder: RunFolder) -> None:
    part = part_of(folder, GetPart("1", "samples/000001.parquet", 1, 2))
    assert (part.data, part.size, part.problem) == (b"ow", 4, "")
    assert part.written_ns == (folder.path / "samples" / "000001.parquet").stat().st_mtime_ns


@pytest.mark.parametrize(
    "path",
    [
        "keys/operator.key",
        "../outside",
        "/etc/hostname",
        "link",
        "lock",
        "samples",
        "",
        "samples/../keys/operator.key",
        "x" * 300,
    ],
)
def test_what_is_not_of_the_record_is_refused(folder: RunFolder, path: str) -> None:
    part = part_of(folder, GetPart("1", path, 0, 10))
    assert part.data == b""
    assert "is no file of this record" in part.problem


def test_a_part_is_bounded_and_an_offset_is_never_negative(folder: RunFolder) -> None:
    big = folder.path / "big"
    big.write_bytes(b"x" * (PART_BYTES + 10))
    assert len(part_of(folder, GetPart("1", "big", 0, 1 << 40)).data) == PART_BYTES
    assert part_of(folder, GetPart("1", "big", PART_BYTES, 1 << 40)).data == b"x" * 10
    assert "before the file begins" in part_of(folder, GetPart("1", "big", -1, 4)).problem
