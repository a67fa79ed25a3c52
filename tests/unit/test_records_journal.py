"""journal.jsonl survives kills, restarts and full disks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records_kit import files_may_have

from harness.records import journal as journal_module
from harness.records.errors import RecordError
from harness.records.journal import JournalWriter, read_journal
from harness.wire.control import JournalEntry


def entry(what: str, **more: object) -> JournalEntry:
    return JournalEntry(seq=0, unix=1.5, who="head", what=what, **more)  # type: ignore[arg-type]


def test_entries_come_back_in_order_and_numbering_continues_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    first = JournalWriter(path)
    assert first.append(entry("run.phase", before="PLACING", after="REGISTERING")).seq == 1
    first.append(entry("straggler.slow", data={"ratio": np.float64(1.2), "windows": np.int64(3), "z": float("nan")}))
    first.close()
    second = JournalWriter(path)
    assert second.append(entry("head.start")).seq == 3
    assert path.read_bytes().count(b"\n") == 3
    back = read_journal(path)
    assert [(e.seq, e.what) for e in back] == [(1, "run.phase"), (2, "straggler.slow"), (3, "head.start")]
    assert back[1].data == {"ratio": 1.2, "windows": 3, "z": None}
    assert (back.damaged, back.truncated) == (0, False)
    assert list(read_journal(tmp_path / "none.jsonl")) == []


def test_a_line_cut_by_a_kill_is_skipped_and_the_next_head_starts_on_a_new_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    writer = JournalWriter(path)
    writer.append(entry("one"))
    writer.append(entry("two"))
    writer.close()
    path.write_bytes(path.read_bytes()[:-9])
    cut = read_journal(path)
    assert ([e.what for e in cut], cut.truncated, cut.damaged) == (["one"], True, 0)
    after = JournalWriter(path)
    assert after.append(entry("three")).seq == 2
    healed = read_journal(path)
    assert ([e.what for e in healed], healed.truncated, healed.damaged) == (["one", "three"], False, 1)


def test_what_a_full_disk_refused_is_written_in_order_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    writer = JournalWriter(path)
    writer.append(entry("one"))
    with files_may_have(path.stat().st_size + 10):
        with pytest.raises(RecordError, match="file size limit") as caught:
            writer.append(entry("two"))
        with pytest.raises(RecordError):
            writer.append(entry("three"))
    assert caught.value.full
    assert [e.what for e in read_journal(path)] == ["one"]
    writer.append(entry("four"))
    back = read_journal(path)
    assert [(e.seq, e.what) for e in back] == [(1, "one"), (2, "two"), (3, "three"), (4, "four")]
    assert (back.damaged, back.truncated, writer.dropped) == (0, False, 0)


def test_waiting_entries_are_bounded_and_the_dropped_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "WAITING_BYTES", 1000)
    writer = JournalWriter(tmp_path / "journal.jsonl")
    with files_may_have(0):
        for n in range(20):
            with pytest.raises(RecordError):
                writer.append(entry(f"event {n}", why="x" * 100))
    assert 0 < writer.dropped < 20
    writer.flush()
    back = read_journal(writer.path)
    assert len(back) == 20 - writer.dropped
    assert writer.next_seq == 21, "a gap in seq shows that entries are missing"


def test_a_journal_that_cannot_be_opened_is_a_record_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="does not exist"):
        JournalWriter(tmp_path / "none" / "journal.jsonl")
    (tmp_path / "journal.jsonl").mkdir()
    with pytest.raises(RecordError):
        JournalWriter(tmp_path / "journal.jsonl")


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_damage_costs_only_the_lines_it_touches(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.jsonl"
    path.unlink(missing_ok=True)
    writer = JournalWriter(path)
    for n in range(6):
        writer.append(entry(f"event {n}", data={"n": n}))
    writer.close()
    content = bytearray(path.read_bytes())
    hits = data.draw(st.lists(st.integers(0, len(content) - 1), max_size=2))
    for at in hits:
        content[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:cut])
    assert len(read_journal(path)) >= bytes(content[:cut]).count(b"\n") - 2 * len(hits)
    JournalWriter(path).append(entry("after"))
    assert read_journal(path)[-1].what == "after"
