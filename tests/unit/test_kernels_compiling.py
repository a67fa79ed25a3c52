"""The pool of compiling children, with children that are told how to fail, and the limits of what was compiled.

The child here is a script that speaks the lines of `python -m kernels.compiling` and compiles nothing: a compiler that crashes or
hangs cannot be had at will, and this Python need have no triton. tests/kernels/compile has the real one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kernels.compiling.pool
from kernels.compiling.job import Job, combine_job, gemm_job
from kernels.compiling.limits import problems
from kernels.compiling.pool import Pool, triton_version
from kernels.compiling.resources import Resources, amd, nvidia
from kernels.errors import KernelInputError, NotHere
from kernels.shapes import model
from kernels.tile import Tile

GPT_OSS = model("gpt-oss-120b")
GOOD = Resources(
    "gfx942", 4, 16896, 118, 0, 34, 0, 0, 7484, waves=4, groups=3, matrix_ops=32, wgmma=0, fp4_conversions=0, async_copies=0
)
CHILD = """
import json, os, pathlib, signal, sys, time
here = pathlib.Path(sys.argv[1])
(here / f"child-{os.getpid()}").touch()
print(json.dumps({"ready": sys.argv[2:] != ["broken"], "triton": "9.9", "error": "no compiler"}), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    with open(here / "asked", "a") as asked:
        asked.write(job["label"] + "\\n")
    what = job["label"].split()[0]
    if what == "crash":
        print("assertion failed in a pass", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang":
        time.sleep(60)
    if what == "babble":
        print("<html>", flush=True)
        continue
    answer = {"error": "ValueError: no such layout"} if what == "refuse" else {"resources": RESOURCES}
    print(json.dumps(answer), flush=True)
""".replace("RESOURCES", repr(GOOD.json()))


def _job(what: str, n: int = 0) -> Job:
    """Jobs that differ in label alone are the same compilation."""
    job = gemm_job("gfx942", GPT_OSS, Tile(), "bf16", "gate_up")
    return replace(job, label=f"{what} {n}", constants=(*job.constants, ("N", 1000 + n), ("OF", what)))


def _pool(folder: Path, workers: int = 2, deadline_s: float = 20.0, *more: str) -> Pool:
    command = [sys.executable, "-c", CHILD, str(folder), *more]
    return Pool(folder / "cache", workers=workers, deadline_s=deadline_s, command_line=command, version="9.9")


def _asked(folder: Path) -> list[str]:
    asked = folder / "asked"
    return asked.read_text().splitlines() if asked.exists() else []


def _living(folder: Path) -> list[int]:
    """Children that are not gone."""
    pids = [int(path.name.removeprefix("child-")) for path in folder.glob("child-*")]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_crash_and_a_hang_cost_one_job_each(tmp_path: Path) -> None:
    jobs = [_job("fine"), _job("crash"), _job("fine", 1), _job("hang"), _job("refuse"), _job("babble"), _job("fine", 2)]
    done: list[tuple[int, int]] = []
    found = {each.job.label: each for each in _pool(tmp_path, deadline_s=5.0).compile(jobs, lambda *at: done.append(at))}
    assert [found[f"fine {n}"].problems for n in range(3)] == [[], [], []]
    assert found["crash 0"].problems == ["compiler lost: the process ended by SIGKILL: assertion failed in a pass"]
    assert found["hang 0"].problems == ["compiler lost: no answer in 5 s"]
    assert found["babble 0"].problems == ["compiler lost: answered '<html>', which is no JSON"]
    assert found["refuse 0"].problems == ["does not compile: ValueError: no such layout"]
    assert done == [(n, 7) for n in range(1, 8)]
    assert _living(tmp_path) == []


def test_what_was_compiled_is_kept_and_what_was_lost_is_tried_again(tmp_path: Path) -> None:
    jobs = [_job("fine"), _job("refuse"), _job("crash")]
    first = {each.job.label: each for each in _pool(tmp_path).compile(jobs)}
    again = {each.job.label: each for each in _pool(tmp_path).compile(jobs)}
    assert [each.cached for each in first.values()] == [False] * 3
    assert {label: each.cached for label, each in again.items()} == {"fine 0": True, "refuse 0": True, "crash 0": False}
    assert again["fine 0"].resources == first["fine 0"].resources == GOOD
    assert again["refuse 0"].problems == first["refuse 0"].problems
    assert sorted(_asked(tmp_path)) == ["crash 0", "crash 0", "fine 0", "refuse 0"]


def test_nothing_is_started_when_all_is_kept(tmp_path: Path) -> None:
    list(_pool(tmp_path).compile([_job("fine")]))
    for child in tmp_path.glob("child-*"):
        child.unlink()
    assert [each.cached for each in _pool(tmp_path).compile([_job("fine")])] == [True]
    assert list(tmp_path.glob("child-*")) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"resources": {}}', '{"resources": 3}', "\x00"])
def test_a_damaged_result_is_compiled_again(tmp_path: Path, text: str) -> None:
    list(_pool(tmp_path).compile([_job("fine")]))
    (kept,) = (tmp_path / "cache").glob("*.json")
    kept.write_text(text)
    (result,) = _pool(tmp_path).compile([_job("fine")])
    assert result.resources == GOOD
    assert not result.cached
    assert json.loads(kept.read_text())["job"]["target"] == "gfx942"


def test_jobs_that_compile_to_the_same_are_compiled_once_and_answered_each(tmp_path: Path) -> None:
    jobs = [_job("fine"), replace(_job("fine"), label="fine 9")]
    assert sorted(each.job.label for each in _pool(tmp_path).compile(jobs)) == ["fine 0", "fine 9"]
    assert _asked(tmp_path) == ["fine 0"]


def test_leaving_off_ends_all_children(tmp_path: Path) -> None:
    results = _pool(tmp_path).compile([_job("fine"), _job("hang"), _job("hang", 1)])
    assert next(results).job.label == "fine 0"
    began = time.monotonic()
    results.close()
    assert time.monotonic() - began < 30.0, "they would hang for a minute"
    assert _living(tmp_path) == []
    assert list((tmp_path / "cache").glob("triton-*")) == []


def test_ctrl_c_ends_all_children(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        sys.path[:0] = [{tests!r}, {root!r}]
        import test_kernels_compiling as here
        list(here._pool(Path({folder!r})).compile([here._job("hang"), here._job("hang", 1)]))
    """).format(tests=str(Path(__file__).parent), root=str(Path(__file__).parents[2]), folder=str(tmp_path))
    parent = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60.0
        while len(_asked(tmp_path)) < 2:
            assert time.monotonic() < deadline, "the children did not start"
            time.sleep(0.05)
        parent.send_signal(signal.SIGINT)
        _, errors = parent.communicate(timeout=60)
        assert "KeyboardInterrupt" in errors
    finally:
        parent.kill()
        parent.wait(10)
    assert _living(tmp_path) == []


def test_children_that_cannot_start_are_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(NotHere, match="did not start: no compiler"):
        list(_pool(tmp_path, 2, 20.0, "broken").compile([_job("fine"), _job("fine", 1)]))
    assert _living(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(NotHere, match="compiled kernels cannot be kept there: File exists"):
        list(_pool(tmp_path).compile([_job("fine")]))


def test_what_launches_shall_find_is_compiled_into_their_cache_and_stays_there(tmp_path: Path) -> None:
    kept = tmp_path / "launches"
    child = CHILD.replace(
        'what = job["label"].split()[0]', 'what = "fine"; pathlib.Path(os.environ["TRITON_CACHE_DIR"], "k").touch()'
    )
    command = [sys.executable, "-c", child, str(tmp_path)]
    for launches in (None, kept):
        cache = tmp_path / f"cache {launches is None}"
        list(
            Pool(cache, workers=1, deadline_s=20.0, command_line=command, version="9.9", launches=launches).compile(
                [_job("fine")]
            )
        )
        assert list(cache.glob("triton-*")) == []
    assert [path.name for path in kept.iterdir()] == ["k"]


def test_a_python_without_triton_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(NotHere, match="cannot be run as a Python"):
        triton_version(str(tmp_path / "python"))
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(NotHere, match=r"bare: has no triton.*--python"):
        Pool(tmp_path, python=str(bare))


def test_a_triton_is_named_without_being_imported(tmp_path: Path) -> None:
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("raise SystemExit('imported')\n__version__ = '3.9.0+rocm7'\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert triton_version(str(python)) == "3.9.0+rocm7"


def test_jobs_survive_their_way_to_the_child() -> None:
    for job in (gemm_job("gfx950", GPT_OSS, Tile(), "fp16", "down"), combine_job("sm_90", GPT_OSS, "bf16")):
        assert Job.of(json.loads(json.dumps(job.json()))) == job


def test_keys_tell_apart_what_compiles_to_other_code() -> None:
    job = gemm_job("gfx942", GPT_OSS, Tile(), "bf16", "gate_up")
    others = [
        gemm_job("gfx950", GPT_OSS, Tile(), "bf16", "gate_up"),
        gemm_job("gfx942", GPT_OSS, Tile(waves_per_eu=2), "bf16", "gate_up"),
        gemm_job("gfx942", GPT_OSS, Tile(), "fp16", "gate_up"),
        gemm_job("gfx942", GPT_OSS, Tile(), "bf16", "down"),
        replace(job, divisible=job.divisible[1:]),
        replace(job, within_2gb=()),
    ]
    keys = [each.key("a", "3.9.0") for each in (job, *others)] + [job.key("b", "3.9.0"), job.key("a", "3.9.1")]
    assert len(set(keys)) == len(keys)
    assert replace(job, label="other").key("a", "3.9.0") == job.key("a", "3.9.0")
    assert gemm_job("gfx942", model("gpt-oss-20b"), Tile(), "bf16", "gate_up").key("a", "3.9.0") == job.key("a", "3.9.0")


def test_ranges_of_pointers_are_amds_alone() -> None:
    assert gemm_job("gfx942", GPT_OSS, Tile(), "bf16", "gate_up").within_2gb
    assert gemm_job("sm_90", GPT_OSS, Tile(), "bf16", "gate_up").within_2gb == ()


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(KernelInputError, match=r"gfx90a.*known: gfx942, gfx950, sm_90"):
        gemm_job("gfx90a", GPT_OSS, Tile(), "bf16", "gate_up")


@pytest.mark.parametrize(
    ("target", "change", "words"),
    [
        ("gfx942", {}, []),
        ("gfx942", {"spills": 77, "scratch_bytes": 228}, ["spills: 77 registers (228 bytes of scratch), none may be"]),
        ("gfx942", {"scratch_bytes": 8}, ["spills: 8 bytes of scratch, none may be"]),
        ("sm_90", {"scratch_bytes": 80}, ["spills: 80 bytes of stack, none may be"]),
        ("gfx942", {"shared_bytes": 70_000, "groups": 0}, ["LDS: 70,000 bytes, gfx942 has 65,536 for a workgroup"]),
        ("sm_90", {"shared_bytes": 240_000, "groups": 0}, ["shared memory: 240,000 bytes, sm_90 has 232,448 for a workgroup"]),
        ("gfx950", {"shared_bytes": 70_000, "fp4_conversions": 64}, []),
        ("sm_90", {"groups": 0}, ["occupancy: no workgroup of 4 warps with 118 registers fits on a compute unit"]),
        ("gfx942", {"matrix_ops": 0}, ["no matrix instruction: the code has no v_mfma"]),
        ("gfx950", {}, ["no fp4 conversion: the code has no v_cvt_scalef32_pk_*_fp4, which gfx950 has"]),
    ],
)
def test_limits_are_told_in_words(target: str, change: dict[str, Any], words: list[str]) -> None:
    assert problems(replace(GOOD, target=target, **change)) == words


AMDGCN = """
	buffer_load_dwordx4 v[0:3], v4, s[0:3], 0 offen
	v_mfma_f32_16x16x16_bf16 a[0:3], v[0:1], v[2:3], a[0:3]
	v_mfma_f32_16x16x16_bf16 a[0:3], v[0:1], v[2:3], a[0:3]
	v_cvt_scalef32_pk_bf16_fp4 v1, v2, v3
	v_cvt_scalef32_pk_f16_fp4 v1, v2, v3
	buffer_load_dwordx4 v1, s[4:7], 0 offen lds
	global_load_lds_dwordx4 v[0:1], off
; codeLenInByte = 7484
; Occupancy: 3
    .agpr_count:     8
    .private_segment_fixed_size: 4
    .sgpr_count:     34
    .sgpr_spill_count: 9
    .vgpr_count:     144
    .vgpr_spill_count: 1
"""


def test_what_amds_assembly_says() -> None:
    found = amd("gfx950", AMDGCN, 60_000, 4)
    assert (found.registers, found.accumulation_registers, found.scalar_registers) == (144, 8, 34)
    assert (found.spills, found.scratch_bytes, found.code_bytes, found.waves) == (1, 4, 7484, 3)
    assert (found.matrix_ops, found.fp4_conversions, found.async_copies) == (2, 2, 2)
    assert found.groups == 2  # by LDS; registers allow 3
    assert amd("gfx942", AMDGCN, 8_000, 8).groups == 1  # 12 waves, 8 to a workgroup
    with pytest.raises(ValueError, match="another LLVM"):
        amd("gfx942", AMDGCN.replace("Occupancy", "Waves"), 8_000, 4)


def test_what_nvidias_tools_say() -> None:
    ptx = "wgmma.mma_async.sync.aligned.m64n16k16\nmma.sync.aligned.m16n8k16\ncp.async.cg.shared.global\ncp.async.wait_group 0;"
    cubin = bytes(64)  # an ELF header without sections
    found = nvidia("sm_90", ptx, " Function moe_gemm:\n  REG:165 STACK:24 SHARED:0 LOCAL:0", cubin, 25_088, 4)
    assert (found.registers, found.scratch_bytes, found.wgmma, found.matrix_ops, found.async_copies) == (165, 24, 1, 2, 1)
    assert found.groups == 3  # 168 registers x 128 threads, of 65,536
    with pytest.raises(ValueError, match="said nothing of registers"):
        nvidia("sm_90", ptx, "cuobjdump info: no kernels", cubin, 0, 4)


def test_the_child_runs_without_the_packages_beside_ours(tmp_path: Path) -> None:
    """Started from a folder that has another `kernels`: it must be ours that answers, here with why it cannot compile."""
    (tmp_path / "kernels.py").write_text("raise SystemExit('the wrong one')")
    from kernels.compiling.child import command

    bare = [sys.executable, "-S", *command(sys.executable, "kernels.compiling")[1:]]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(bare, cwd=tmp_path, env=environment, input="", capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(ran.stdout) == {"ready": False, "error": "ModuleNotFoundError: No module named 'triton'"}


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("sleep 60 & exit 0", "no answer in 3 s"),
        ("sleep 60", "no answer in 3 s"),
        ("printf '\\351\\377\\n'; sleep 60", "no JSON"),
        ("cat /dev/zero", "no JSON"),
        ("head -c 200000 /dev/zero | tr '\\0' '['; echo; sleep 60", "no JSON"),
        ("exit 0", "ended with exit code 0"),
    ],
)
def test_programs_that_are_no_python_are_told_and_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, said: str
) -> None:
    if "no answer" in said:  # what answers may take its time
        monkeypatch.setattr(kernels.compiling.pool, "WHICH_DEADLINE_S", 3.0)
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/group\n{does}\n")
    program.chmod(0o755)
    with pytest.raises(NotHere, match=f"cannot be run as a Python.*{said}"):
        triton_version(str(program))
    group = int((tmp_path / "group").read_text())
    until_s = time.monotonic() + 30
    while _members(group) and time.monotonic() < until_s:
        time.sleep(0.02)
    assert _members(group) == []


def _members(group: int) -> list[str]:
    """Processes of a group that are more than the dead waiting to be fetched."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, of_group = entry.read_text().rpartition(") ")[2].split()[:3]
            if int(of_group) == group and state != "Z":
                found.append(entry.parent.name)
    return found


def test_what_the_machine_lacks_stops_the_compiling_and_is_not_held_against_a_kernel(tmp_path: Path) -> None:
    child = CHILD.replace(
        'what = job["label"].split()[0]', 'print(json.dumps({"machine": "OSError: disk full"}), flush=True); continue'
    )
    pool = Pool(tmp_path, workers=1, deadline_s=20.0, command_line=[sys.executable, "-c", child, str(tmp_path)], version="9.9")
    with pytest.raises(NotHere, match="by no fault of the kernel's: OSError: disk full"):
        list(pool.compile([_job("fine")]))
    assert not list(tmp_path.glob("*.json"))
