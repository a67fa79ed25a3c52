"""The vllm engine with a real vLLM on the CPU: one start for the tests that only ask, one more for each that breaks it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from engine_kit import (
    SMALL,
    VOCAB,
    Listener,
    Replica,
    context_of,
    core_pids,
    ids,
    prepare_environment,
    prompt,
    request,
    spec_of,
    started,
    sum_of,
)

from harness.engines.base import EngineError, Key, Request
from harness.engines.vllm import VllmEngine
from harness.spec import RunSpec
from harness.wire.data import PREFILL

#: Room for answers of many seconds, which no machine is done with before a test has acted on them.
LONG = {**SMALL, "max_model_len": 4096, "max_num_batched_tokens": 4096}

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(tiny_llama: Path) -> AsyncIterator[Replica]:
    spec = spec_of(tiny_llama, args=LONG)
    prepare_environment(spec)
    replica = await started(spec)
    yield replica
    await replica.engine.stop()


async def start_fails(spec: RunSpec) -> str:
    engine = VllmEngine(context_of(spec), Listener())
    with pytest.raises(EngineError) as caught:
        await engine.start()
    await engine.stop()
    return str(caught.value)


async def test_first_comes_before_complete_once_each_and_is_its_first_token(replica: Replica) -> None:
    heard = replica.listen()
    for seq in range(12):
        replica.engine.submit(request(seq, max_tokens=8 + seq))
    await heard.until_complete(12)
    assert not heard.failures
    assert not heard.deaths
    assert len(heard.order) == 24
    for seq in range(12):
        key = Key(1, seq, 0)
        assert heard.order.index(("first", key)) < heard.order.index(("complete", key))
        assert heard.firsts[key] == heard.completes[key][:4]
        assert len(heard.completes[key]) == 4 * (8 + seq)
        assert all(0 <= token < VOCAB for token in ids(heard.completes[key]))
        queue_us, prefill_us, decode_us = heard.times_us[key]
        assert 0 <= queue_us < 10e6
        assert 0 < prefill_us < 10e6
        assert 0 < decode_us < 60e6


async def test_greedy_tokens_depend_on_the_prompt_alone(replica: Replica) -> None:
    heard = replica.listen()
    replica.engine.submit(request(3))
    await heard.until_complete(1)
    for seq in range(8):  # in a batch, and as another try
        replica.engine.submit(request(seq, attempt_try=1))
    await heard.until_complete(9)
    assert heard.completes[Key(1, 3, 0)] == heard.completes[Key(1, 3, 1)]
    assert len(set(heard.completes.values())) > 4


async def test_stats_add_up_to_the_tokens_delivered_and_gauges_return_to_zero(replica: Replica) -> None:
    heard = replica.listen()
    replica.engine.stats()
    parts = []
    for seq in range(10):
        replica.engine.submit(request(seq))
        await asyncio.sleep(0.01)
        parts.append(replica.engine.stats())
    assert max(part.outstanding for part in parts) > 1
    await heard.until_complete(10)
    last = replica.engine.stats()
    parts.append(last)
    tokens, steps = sum_of(parts)
    assert tokens == sum(len(answer) // 4 for answer in heard.completes.values()) == 400
    assert 40 <= steps <= 400
    assert sum(part.prefill_tokens * part.steps for part in parts) == pytest.approx(240)
    assert sum(part.batch * part.steps for part in parts) == pytest.approx(400 - 10)
    assert 0 < last.step_ms < 1000
    assert (last.running, last.waiting, last.outstanding, last.kv_use, last.failed) == (0, 0, 0, 0.0, 0)


async def test_a_cancelled_request_says_nothing_more(replica: Replica) -> None:
    heard = replica.listen()
    for seq in range(6):
        replica.engine.submit(request(seq, max_tokens=4000 if seq < 2 else 100))
    assert replica.engine.stats().outstanding == 6
    replica.engine.cancel(Key(1, 0, 0))  # before its first token
    assert replica.engine.stats().outstanding == 5
    await heard.until(lambda: Key(1, 1, 0) in heard.firsts)
    replica.engine.cancel(Key(1, 1, 0))  # after it
    await heard.until_complete(4)
    replica.engine.cancel(Key(1, 2, 0))  # long complete: no matter
    await asyncio.sleep(0.1)
    assert [what for what, key in heard.order if key.seq == 0] == []
    assert [what for what, key in heard.order if key.seq == 1] == ["first"]
    assert not heard.failures
    assert not replica.engine.llm.output_processor.has_unfinished_requests()


async def test_a_prompt_that_the_model_cannot_take_fails_with_what_is_wrong(replica: Replica) -> None:
    heard = replica.listen()
    replica.engine.stats()
    replica.engine.submit(request(0, tokens=4096))
    replica.engine.submit(Request(Key(1, 1, 0), (VOCAB).to_bytes(4, "little") * 3, 8))
    replica.engine.submit(Request(Key(1, 2, 0), b"", 8))
    replica.engine.submit(request(3, tokens=4084, max_tokens=100))  # fits, and is cut
    await heard.until(lambda: len(heard.failures) == 3 and bool(heard.completes))
    assert "4096 tokens leaves no room" in heard.failures[Key(1, 0, 0)]
    assert "token id 512; the model's vocabulary is 0 to 511" in heard.failures[Key(1, 1, 0)]
    assert "no tokens" in heard.failures[Key(1, 2, 0)]
    assert len(heard.completes[Key(1, 3, 0)]) == 4 * 12
    assert replica.engine.stats().failed == 3


async def test_a_warm_up_of_the_prefill_role_is_one_token_and_leaves_nothing_to_fetch(replica: Replica) -> None:
    heard = replica.listen()
    replica.engine.stats()
    replica.engine.submit(Request(Key(0, 0, 1), prompt(1), 40, stage=PREFILL))
    await heard.until(lambda: bool(heard.prefilleds))
    assert json.loads(heard.prefilleds[Key(0, 0, 1)]) == {}
    assert heard.order == [("prefilled", Key(0, 0, 1))]
    assert replica.engine.stats().tokens_out == 1


async def test_facts_and_versions_say_what_runs(replica: Replica) -> None:
    versions, facts = replica.engine.versions(), replica.engine.facts()
    assert versions["engine"] == facts["engine"] == "vllm"
    assert versions["vllm"][0].isdigit()
    assert versions["vllm_build"] == "cpu"
    assert {"torch", "transformers"} <= set(versions)
    assert facts["synthetic"] is False
    assert facts["arg.enable_prefix_caching"] is False
    assert facts["arg.max_model_len"] == LONG["max_model_len"]
    assert facts["arg.dtype"] == "bfloat16"
    assert not [name for name in facts if name.startswith("kernel")], "a dense model has no MoE layer to tell of"


async def test_a_model_without_such_layers_is_refused_where_our_kernel_is_required(tiny_llama: Path) -> None:
    prepare_environment(spec_of(tiny_llama))
    refused = await start_fails(spec_of(tiny_llama, kernels={"moe": "paceline", "required": True}))
    assert refused.startswith("fleet.kernels.required = true, and vLLM does not use our MoE kernel alone: the plugin tells of no")


async def test_arguments_that_vllm_does_not_know_or_take_are_named(tiny_llama: Path) -> None:
    prepare_environment(spec_of(tiny_llama))
    unknown = await start_fails(spec_of(tiny_llama, args={**SMALL, "max_num_seq": 4}))
    assert unknown.startswith("fleet.engine_args.max_num_seq = 4: not an argument of vLLM")
    assert '"max_num_seqs"' in unknown
    kind = await start_fails(spec_of(tiny_llama, args={**SMALL, "kv_cache_dtype": "fp7"}))
    assert "kv_cache_dtype = 'fp7'" in kind
    far = await start_fails(spec_of(tiny_llama, args={**SMALL, "max_model_len": 100_000}))
    assert "max_model_len" in far
    assert "100000" in far


async def test_a_start_that_fails_in_a_child_tells_the_cause(tiny_llama: Path) -> None:
    prepare_environment(spec_of(tiny_llama))
    text = await start_fails(spec_of(tiny_llama, args={**SMALL, "kv_cache_memory_bytes": 1024}))
    assert text.startswith("vLLM could not start: ")
    assert "Its cause: ValueError: " in text
    assert "memory for the cache" in text


async def test_a_core_that_is_killed_is_told_at_once_and_pending_requests_say_nothing(tiny_llama: Path) -> None:
    spec = spec_of(tiny_llama, args=LONG)
    prepare_environment(spec)
    before = asyncio.all_tasks()
    replica = await started(spec)
    heard = replica.listen()
    for seq in range(8):
        replica.engine.submit(request(seq, max_tokens=4000))
    await heard.until(lambda: len(heard.firsts) == 8)
    begun_s = time.monotonic()
    os.kill(core_pids(replica.engine)[0], signal.SIGKILL)
    await heard.until(lambda: bool(heard.deaths), deadline_s=60)
    after_s = time.monotonic() - begun_s
    await asyncio.sleep(0.3)
    replica.engine.submit(request(99))
    assert after_s < 8
    assert len(heard.deaths) == 1
    assert "was killed by SIGKILL" in heard.deaths[0]
    assert list(heard.failures) == [Key(1, 99, 0)]
    assert not heard.completes
    assert replica.engine.stats().outstanding == 0
    await replica.engine.stop()
    assert asyncio.all_tasks() == before
    print(f"told {after_s:.2f} s after the kill")


async def test_the_death_of_an_idle_engine_is_seen_and_stop_leaves_nothing(tiny_gpt_oss: Path, tmp_path: Path) -> None:
    """And, before it: gpt-oss generates, its end of text ends an answer, and the warm-up goes on past it."""
    generation = {"eos_token_id": list(range(0, VOCAB, 2))}
    model = tmp_path / "many-ends"
    model.mkdir()
    for file in tiny_gpt_oss.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    (model / "generation_config.json").write_text(json.dumps(generation))
    spec = spec_of(model, sampling={"temperature": 1.0, "seed": 7, "min_tokens": 2})
    prepare_environment(spec)
    replica = await started(spec)
    heard = replica.listen()
    for seq in range(8):
        replica.engine.submit(request(seq, max_tokens=60))
        replica.engine.submit(request(seq, max_tokens=60, attempt_try=1))
        replica.engine.submit(request(seq, max_tokens=20, epoch=0))
    await heard.until(lambda: len(heard.completes) + len(heard.failures) == 24)
    assert not heard.failures
    for seq in range(8):
        answer = ids(heard.completes[Key(1, seq, 0)])
        assert answer == ids(heard.completes[Key(1, seq, 1)])  # a seed of its own for each sample, the same for its tries
        assert 2 <= len(answer) <= 60
        assert len(answer) == 60 or answer[-1] % 2 == 0
        assert len(ids(heard.completes[Key(0, seq, 0)])) == 20
    assert len({heard.completes[Key(1, seq, 0)] for seq in range(8)}) > 1

    worker = next(child for pid in core_pids(replica.engine) for child in _children_of(pid) if "Worker" in _title(child))
    begun_s = time.monotonic()
    os.kill(worker, signal.SIGKILL)
    await heard.until(lambda: bool(heard.deaths), deadline_s=60)
    print(f"idle: told {time.monotonic() - begun_s:.2f} s after the kill: {heard.deaths[0]}")
    assert heard.deaths[0].startswith("vLLM's engine core has died: ")
    assert "died unexpectedly" in heard.deaths[0]
    await replica.engine.stop()
    assert len(heard.deaths) == 1


async def test_stop_during_the_start_ends_it(tiny_llama: Path) -> None:
    spec = spec_of(tiny_llama)
    prepare_environment(spec)
    before = asyncio.all_tasks()
    engine = VllmEngine(context_of(spec), Listener())
    start = asyncio.create_task(engine.start())
    async with asyncio.timeout(60):
        while not any("VLLM" in _title(pid) for pid in _children_of(os.getpid())):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    start.cancel()
    begun_s = time.monotonic()
    await engine.stop()
    assert time.monotonic() - begun_s < 12
    await asyncio.wait({start})
    assert asyncio.all_tasks() == before


_TWICE = """
import asyncio, signal, sys
from pathlib import Path
import engine_kit as kit
from descendants import descendants

async def main():
    signals = []
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signals.append, "SIGTERM")
    spec = kit.spec_of(Path(sys.argv[1]))
    kit.prepare_environment(spec)
    first = await kit.started(spec)
    await first.engine.stop()
    await asyncio.sleep(0.2)
    left = [title for title in descendants().values() if "VLLM" in title]
    second = await kit.started(spec)
    pids = [pid for pid, title in descendants().items() if "VLLM" in title]
    print("second", len(signals), len(left), *pids, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_a_second_life_in_a_process_hears_no_signal_of_the_first_and_a_killed_process_leaves_no_engine(tiny_llama: Path) -> None:
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", _TWICE, str(tiny_llama)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, "PYTHONPATH": paths}
    ) as process:
        assert process.stdout is not None
        try:
            told = next((line.split() for line in process.stdout if line.startswith("second ")), None)
        finally:
            process.kill()
    assert told is not None, "it ended before its second engine had started"
    signals, left, *pids = map(int, told[1:])
    assert (signals, left) == (0, 0)
    assert len(pids) == 2
    deadline_s = time.monotonic() + 20
    while any(map(running, pids)) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not any(map(running, pids))


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _children_of(pid: int) -> list[int]:
    listed = [Path(f"/proc/{pid}/task/{thread.name}/children") for thread in Path(f"/proc/{pid}/task").iterdir()]
    return [int(child) for file in listed for child in file.read_text().split()]


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
