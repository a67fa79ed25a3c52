"""The preflight: what it says about machines that lack something, and that it changes nothing on this one."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from harness import doctor
from harness.engines import registry


def test_this_machine_can_run_paceline(tmp_path: Path) -> None:
    checks = {check.name: check for check in doctor.examine(tmp_path / "runs")}
    for name in ("python", "libraries", "loadgen", "loopback", "monotonic clock", "engines"):
        assert checks[name].ok is True, checks[name]
    assert "synthetic" in checks["engines"].detail
    assert not (tmp_path / "runs").exists(), "looking creates nothing"


def test_everything_that_fails_says_what_to_do() -> None:
    failed = [
        doctor.python((3, 14), "3.14.0"),
        doctor.open_files((64, 400)),
        doctor.disk(Path("/proc/paceline")),
        doctor.terminal({}, (80, 24), tty=True),
    ]
    assert [check.ok for check in failed] == [False] * 4
    assert all(check.fix for check in failed)


@pytest.mark.parametrize(
    ("limits", "ok"),
    [((1024, 65536), True), ((1024, resource.RLIM_INFINITY), True), ((1024, 1024), None), ((256, 400), False)],
)
def test_the_hard_limit_of_open_files_decides(limits: tuple[int, int], ok: bool | None) -> None:
    assert doctor.open_files(limits).ok is ok


def test_a_small_or_plain_terminal_gets_advice() -> None:
    good = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    assert doctor.terminal(good, (120, 36), tty=True).ok is True
    assert "80x24" in doctor.terminal(good, (70, 20), tty=True).fix
    assert "set-clipboard on" in doctor.terminal({**good, "TMUX": "/tmp/tmux"}, (120, 36), tty=True).fix
    assert "COLORTERM" in doctor.terminal({"TERM": "xterm"}, (120, 36), tty=True).fix
    assert doctor.terminal({"TERM": "dumb"}, (120, 36), tty=True).ok is False
    assert doctor.terminal(good, (120, 36), tty=False).ok is None


def test_a_locale_without_utf8_is_noted() -> None:
    assert doctor.locale({"LANG": "C.UTF-8"}).ok is True
    assert doctor.locale({"LC_ALL": "POSIX", "LANG": "C.UTF-8"}).ok is None


def test_few_processors_are_noted_not_refused_and_a_local_fleet_is_told_to_share_them() -> None:
    assert [doctor.cpus(n).ok for n in (1, 2, 4)] == [None, None, True]
    assert "a local fleet has to share" in doctor.cpus(2).detail
    assert "local synthetic fleet" in doctor.cpus(2).fix


def test_an_unknown_state_of_the_system_clock_is_not_a_failure(tmp_path: Path) -> None:
    stamp = tmp_path / "synchronized"
    assert doctor.clock_synchronised(stamp).ok in (None, True)
    stamp.touch()
    assert doctor.clock_synchronised(stamp).ok is True


def test_every_engine_that_cannot_start_says_why_and_the_others_are_named() -> None:
    summary, *unable = doctor.engines()
    assert summary.ok is True
    for name in registry.names():
        why = registry.cannot_start(name)
        if why:
            assert doctor.Check(f"engine {name}", None, f"cannot start here: {why}") in unable
        else:
            assert name in summary.detail
    assert len(unable) == sum(bool(registry.cannot_start(name)) for name in registry.names())


def test_an_engine_is_looked_for_in_the_interpreter_that_the_spec_names(tmp_path: Path) -> None:
    assert doctor.engine("synthetic").ok is True
    there = doctor.engine("synthetic", sys.executable)
    assert (there.ok, there.detail) == (True, f"synthetic (simulates, measures no hardware), in {sys.executable}")
    assert "did you mean" in doctor.engine("synthetik", sys.executable).detail
    assert "no such program" in doctor.engine("synthetic", str(tmp_path / "python")).detail
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True, timeout=60)
    bare = doctor.engine("synthetic", str(tmp_path / "bare" / "bin" / "python"))
    assert bare.ok is False
    assert "No module named" in bare.detail


def test_accelerators_are_told_as_a_worker_would_share_them_out(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"nvidia{number}").touch()
    assert doctor.accelerators(tmp_path, {}) == doctor.Check("accelerators", True, "8 CUDA accelerators")
    narrowed = doctor.accelerators(tmp_path, {"CUDA_VISIBLE_DEVICES": "1,2"})
    assert narrowed.detail == "2 CUDA accelerators of 8 (CUDA_VISIBLE_DEVICES=1,2)"
    hidden = doctor.accelerators(tmp_path, {"CUDA_VISIBLE_DEVICES": ""})
    assert (hidden.ok, hidden.fix) == (None, "unset that variable, unless it hides them on purpose")
    assert doctor.accelerators(tmp_path / "none", {}).ok is None
