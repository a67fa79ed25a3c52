"""run.json and head.json over the lives of several heads: what goes on, what is closed, what cannot be continued."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from head_kit import a_spec
from records_kit import files_may_have

from harness.cluster.procinfo import start_ticks
from harness.head.runbook import RunBook, RunOver
from harness.records.errors import RecordError
from harness.records.layout import RunFolder
from harness.records.runfile import read_run
from harness.spec import RunSpec
from harness.wire.states import DONE, MEASURING, READY, RUN_ENDED


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def test_a_first_head_writes_the_run_down_at_once(folder: RunFolder) -> None:
    spec = a_spec(load={"target_qps": 7})
    book = RunBook(folder, spec, "server public")
    assert (book.epoch, book.resumed, book.next_number, book.last_attempt) == (1, False, 1, None)
    run = read_run(folder.path)
    assert (run.run, run.phase, run.synthetic) == (folder.name, "PLACING", True)
    assert RunSpec.model_validate(run.spec) == spec
    assert run.versions["python"]
    assert run.versions["pyzmq"]
    assert [(life.epoch, life.pid) for life in run.head_epochs] == [(1, os.getpid())]
    assert book.control_address == book.telemetry_address == "tcp://127.0.0.1:0"


def test_the_next_head_continues_epoch_endpoints_and_numbers_and_closes_what_was_open(folder: RunFolder) -> None:
    first = RunBook(folder, a_spec(), "key")
    first.listen("tcp://127.0.0.1:5001", "tcp://127.0.0.1:5002")
    done = first.new_attempt("performance", "Server", 10, 0)
    done.state, done.verdict, done.reasons = "ENDED", "VALID", ["as it should"]
    first.new_attempt("explore", "Server", 20, 1)
    first.phase(MEASURING)

    second = RunBook(folder, a_spec(), "key")
    assert (second.epoch, second.resumed) == (2, True)
    assert (second.control_address, second.telemetry_address) == ("tcp://127.0.0.1:5001", "tcp://127.0.0.1:5002")
    kept, lost = read_run(folder.path).attempts
    assert (kept.verdict, kept.reasons) == ("VALID", ["as it should"])
    assert (lost.state, lost.verdict, lost.reasons) == ("ENDED", "CRASHED", ["the head ended during this attempt"])
    assert lost.ended_unix > 0
    third = second.new_attempt("performance", "Server", 30, 0)
    assert (third.number, third.epoch) == (3, 3), "an epoch on the wire is never used twice in a run"
    assert [life.epoch for life in second.run.head_epochs] == [1, 2]


@pytest.mark.parametrize("phase", sorted(RUN_ENDED))
def test_a_run_that_has_ended_is_not_continued(folder: RunFolder, phase: str) -> None:
    book = RunBook(folder, a_spec(), "key")
    book.end("VALID", [])
    book.phase(phase)
    with pytest.raises(RunOver, match=f"ended as {phase} .*start a new run"):
        RunBook(folder, a_spec(), "key")
    assert len(read_run(folder.path).head_epochs) == 1


def test_a_damaged_run_file_is_reported_and_not_overwritten(folder: RunFolder) -> None:
    folder.run_json.write_text('{"run": "x", ')
    with pytest.raises(RecordError, match=r"run\.json"):
        RunBook(folder, a_spec(), "key")
    assert folder.run_json.read_text() == '{"run": "x", '


@pytest.mark.parametrize("content", ["", "{", "{}"])
def test_a_lost_address_file_makes_the_head_listen_anywhere(folder: RunFolder, content: str) -> None:
    RunBook(folder, a_spec(), "key")
    folder.head_json.write_text(content)
    assert RunBook(folder, a_spec(), "key").control_address == "tcp://127.0.0.1:0"


def test_the_address_file_names_this_process_so_that_no_other_is_taken_for_it(folder: RunFolder) -> None:
    book = RunBook(folder, a_spec(), "key")
    book.listen("tcp://127.0.0.1:5001", "tcp://127.0.0.1:5002")
    about = json.loads(folder.head_json.read_text())
    assert (about["pid"], about["ticks"], about["epoch"]) == (os.getpid(), start_ticks(os.getpid()), 1)
    book.gone()
    book.gone()
    assert not folder.head_json.exists()


def test_the_end_sums_up_the_acts_and_lands_with_the_phase(folder: RunFolder) -> None:
    book = RunBook(folder, a_spec(), "key")
    for acts in (2, 3):
        book.new_attempt("performance", "Server", 10, 0).acts = acts
    book.end("INVALID", ["TTFT p99 over its limit"])
    book.phase(DONE)
    run = read_run(folder.path)
    assert (run.phase, run.verdict, run.reasons, run.acts) == (DONE, "INVALID", ["TTFT p99 over its limit"], 5)
    assert run.ended_unix >= run.started_unix > 0


def test_a_full_disk_is_trouble_to_report_and_leaves_the_last_record_whole(folder: RunFolder) -> None:
    book = RunBook(folder, a_spec(), "key")
    before = folder.run_json.read_bytes()
    with files_may_have(100):
        book.phase(READY)
    assert book.trouble is not None
    assert "run.json" in book.trouble
    assert folder.run_json.read_bytes() == before
    book.save()
    assert read_run(folder.path).phase == READY
