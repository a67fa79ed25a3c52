"""Replicas' logs on the worker's own output: whole lines, marked by replica, once each."""

from __future__ import annotations

from pathlib import Path

from harness.worker.echo import LogEcho


def test_lines_come_once_each_marked_with_their_replica(tmp_path: Path) -> None:
    said: list[str] = []
    echo = LogEcho(said.append)
    one, node = tmp_path / "node003-gpu1.log", tmp_path / "node003.log"
    one.write_text("loading\nhalf a li")
    node.write_text("of all\n")
    echo.look([one, node, tmp_path / "node003-gpu2.log"])
    assert said == ["[node003/gpu1] loading\n", "of all\n"]
    with one.open("a") as file:
        file.write("ne\n")
    echo.look([one, node])
    assert said[2:] == ["[node003/gpu1] half a line\n"]


def test_a_log_that_was_emptied_begins_anew(tmp_path: Path) -> None:
    said: list[str] = []
    echo = LogEcho(said.append)
    log = tmp_path / "node000-gpu0.log"
    log.write_text("a long first line\n")
    echo.look([log])
    log.write_text("new\n")
    echo.look([log])
    assert said == ["[node000/gpu0] a long first line\n", "[node000/gpu0] new\n"]


def test_an_endless_line_does_not_hold_up_what_follows(tmp_path: Path) -> None:
    said: list[str] = []
    echo = LogEcho(said.append)
    log = tmp_path / "node000-gpu0.log"
    log.write_bytes(b"x" * (1 << 20) + b"yz\nnext\n")
    echo.look([log])
    echo.look([log])
    assert said[-1] == "[node000/gpu0] next\n"
