"""The head's journal: one entry reaches disk, memory and screens alike, and a full disk loses neither run nor story."""

from __future__ import annotations

from pathlib import Path

from records_kit import files_may_have

from harness.head.journal import Journal
from harness.records.journal import JournalWriter, read_journal
from harness.wire.control import JournalEntry


def make(path: Path) -> tuple[Journal, list[JournalEntry]]:
    published: list[JournalEntry] = []
    return Journal(JournalWriter(path), published.append, lambda: 1234.5), published


def test_an_entry_is_the_same_on_disk_in_memory_and_on_screens(tmp_path: Path) -> None:
    journal, published = make(tmp_path / "journal.jsonl")
    journal.attempt = 2
    entry = journal.note(
        "act.evict", who="operator:ann", subject="node000/gpu0", why="slow", before="READY", after="EVICTED", level="warn", held=3
    )
    assert entry == JournalEntry(
        1, 1234.5, "operator:ann", "act.evict", "node000/gpu0", "slow", "READY", "EVICTED", "warn", {"held": 3}, 2
    )
    assert list(journal.tail) == published == list(read_journal(tmp_path / "journal.jsonl")) == [entry]


def test_a_restarted_head_counts_on(tmp_path: Path) -> None:
    first, _ = make(tmp_path / "journal.jsonl")
    first.note("head.start")
    second, _ = make(tmp_path / "journal.jsonl")
    assert second.note("head.start").seq == 2
    assert [entry.seq for entry in read_journal(tmp_path / "journal.jsonl")] == [1, 2]


def test_a_disk_that_refuses_is_trouble_told_once_and_screens_still_hear(tmp_path: Path) -> None:
    journal, published = make(tmp_path / "journal.jsonl")
    journal.note("before")
    assert journal.trouble is None
    with files_may_have((tmp_path / "journal.jsonl").stat().st_size):
        journal.note("during one")
        trouble = journal.trouble
        journal.note("during two")
    assert trouble is not None
    assert "journal.jsonl" in trouble
    assert journal.trouble == trouble
    journal.note("after")
    assert [entry.what for entry in published] == ["before", "during one", "during two", "after"]
    assert [(e.seq, e.what) for e in read_journal(tmp_path / "journal.jsonl")] == [
        (1, "before"), (2, "during one"), (3, "during two"), (4, "after"),
    ]  # fmt: skip


def test_memory_keeps_the_newest_entries_only(tmp_path: Path) -> None:
    journal, _ = make(tmp_path / "journal.jsonl")
    for number in range(5100):
        journal.note(f"n{number}")
    assert len(journal.tail) == 5000
    assert journal.tail[-1].what == "n5099"
    assert len(read_journal(tmp_path / "journal.jsonl")) == 5100
