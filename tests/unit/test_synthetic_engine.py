"""The synthetic engine in real time: lengths and tokens, planted faults, arguments, and the registry's answers."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from clock_kit import Clock

from harness.engines import registry
from harness.engines.base import EngineContext, EngineError, Key, Request, argument_facts
from harness.engines.synthetic.engine import SyntheticEngine, output_tokens
from harness.engines.synthetic.lengths import clipped_mean, draw_lengths, length_of, location_of
from harness.engines.synthetic.scheduler import scheduler_of_running_loop
from harness.engines.synthetic.tokens import output_ids
from harness.spec import LengthSpec, RunSpec

PROMPT = b"\x05\x00\x00\x00" * 16


class Listener:
    """Keeps what an engine says, in order."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Key, Any]] = []
        self.deaths: list[str] = []
        self._spoke = asyncio.Event()

    def first(self, key: Key, token: bytes, queue_us: int, prefill_us: int) -> None:
        self._say("first", key, token)

    def complete(self, key: Key, tokens: bytes, queue_us: int, prefill_us: int, decode_us: int) -> None:
        self._say("complete", key, tokens)

    def failed(self, key: Key, reason: str) -> None:
        self._say("failed", key, reason)

    def loading(self, note: str) -> None:
        pass

    def died(self, reason: str) -> None:
        self.deaths.append(reason)

    def _say(self, what: str, key: Key, payload: Any) -> None:
        self.said.append((what, key, payload))
        self._spoke.set()

    def of(self, what: str) -> list[Key]:
        return [key for said, key, _ in self.said if said == what]

    async def until(self, what: str, count: int, deadline_s: float = 60.0) -> None:
        async with asyncio.timeout(deadline_s):
            while len(self.of(what)) < count:
                self._spoke.clear()
                await self._spoke.wait()


def spec_with(*, model: dict[str, Any] | None = None, **args: Any) -> RunSpec:
    fleet = {"nodes": 2, "replicas_per_node": 4, "engine_args": {"load_s": 0.0, **args}}
    return RunSpec.model_validate({"model": model or {}, "fleet": fleet})


def engine_of(spec: RunSpec, listener: Listener, *, slot: str = "node000/gpu0", life: int = 0) -> SyntheticEngine:
    ordinal = spec.slots().index(slot)
    node, gpu = divmod(ordinal, spec.fleet.replicas_per_node)
    return SyntheticEngine(EngineContext(spec, slot, node, gpu, ordinal, "i0", life, spec.fleet.engine_args), listener)


def request(seq: int, *, expected: int = 0, max_tokens: int = 100, index: int | None = None) -> Request:
    return Request(Key(1, seq, 0), PROMPT, max_tokens, expected, seq if index is None else index)


# -- tokens and lengths --------------------------------------------------------------------------------------------------


def test_output_ids_are_a_pure_function_with_the_prefix_property() -> None:
    long = output_ids(123, 500, 32000, 2)
    assert output_ids(123, 500, 32000, 2) == long
    assert output_ids(123, 20, 32000, 2) == long[:80]
    assert output_ids(124, 500, 32000, 2) != long


def test_output_ids_stay_in_the_vocabulary_and_never_end_the_text() -> None:
    ids = np.frombuffer(output_ids(9, 20_000, 50, 17), "<i4")
    assert (ids.min(), ids.max()) == (3, 49)
    assert 17 not in ids
    assert 49 not in np.frombuffer(output_ids(9, 20_000, 50, 49), "<i4")


def test_output_ids_wrap_around_the_end_of_the_ring() -> None:
    index = next(i for i in range(200_000) if (i * 0x9E3B5) % (1 << 20) > (1 << 20) - 100)
    assert len(output_ids(index, 1000, 32000, 2)) == 4000
    assert output_ids(index, 1000, 32000, 2)[:200] == output_ids(index, 50, 32000, 2)


def test_the_known_output_length_wins_and_is_clipped_to_the_request() -> None:
    spec = spec_with()
    assert output_tokens(spec, request(0, expected=30)) == 30
    assert output_tokens(spec, request(0, expected=300, max_tokens=100)) == 100
    assert output_tokens(spec, request(0, expected=1)) == 2


def test_unknown_output_lengths_follow_the_dataset_and_depend_on_the_index_only() -> None:
    lengths = LengthSpec(mean=1344, sigma=1.0, min=2, max=10240)
    drawn = [length_of(lengths, index, 1) for index in range(20_000)]
    assert drawn == [length_of(lengths, index, 1) for index in range(20_000)]
    assert np.mean(drawn) == pytest.approx(1344, rel=0.03)
    assert 2 <= min(drawn) <= max(drawn) <= 10240
    assert length_of(lengths, 5, 1) != length_of(lengths, 5, 2)


@pytest.mark.parametrize("sigma", [0.0, 0.3, 1.0, 3.0])
def test_the_mean_length_holds_after_clipping(sigma: float) -> None:
    lengths = LengthSpec(mean=900, sigma=sigma, min=16, max=6000)
    assert clipped_mean(location_of(lengths), sigma, 16, 6000) == pytest.approx(900, rel=1e-6)
    assert draw_lengths(lengths, 200_000, np.random.default_rng(1)).mean() == pytest.approx(900, rel=0.02)


async def test_an_engine_answers_with_exactly_the_stated_tokens() -> None:
    spec, listener = spec_with(speed=100, model={"vocab_size": 500, "eos_token_id": 7}), Listener()
    engine = engine_of(spec, listener)
    await engine.start()
    for seq in range(5):
        engine.submit(request(seq, expected=20 + seq, index=1000 + seq))
    await listener.until("complete", 5)
    await engine.stop()
    tokens = {key.seq: payload for said, key, payload in listener.said if said == "complete"}
    assert tokens == {seq: output_ids(1000 + seq, 20 + seq, 500, 7) for seq in range(5)}


# -- planted faults ------------------------------------------------------------------------------------------------------


async def step_ms_of(spec: RunSpec, *, slot: str = "node000/gpu0", life: int = 0) -> float:
    listener = Listener()
    engine = engine_of(spec, listener, slot=slot, life=life)
    await engine.start()
    await asyncio.sleep(0.01)
    engine.submit(request(0, expected=100))
    await listener.until("complete", 1)
    step_ms = engine.stats().step_ms
    await engine.stop()
    return step_ms


async def test_a_slow_fault_stretches_steps_of_its_slot_in_the_first_life_only() -> None:
    spec = spec_with(speed=20, jitter=0.0, faults=[{"slot": "node000/gpu1", "kind": "slow", "percent": 25}])
    healthy = await step_ms_of(spec)
    assert await step_ms_of(spec, slot="node000/gpu1") == pytest.approx(1.25 * healthy, rel=0.01)
    assert await step_ms_of(spec, slot="node000/gpu1", life=1) == pytest.approx(healthy, rel=0.01)


async def test_every_life_makes_a_fault_return() -> None:
    fault = {"slot": "node000/*", "kind": "slow", "percent": 100, "every_life": True}
    spec = spec_with(speed=20, jitter=0.0, faults=[fault])
    assert await step_ms_of(spec, life=3) == pytest.approx(2 * await step_ms_of(spec_with(speed=20, jitter=0.0)), rel=0.01)


async def test_a_slow_fault_ends_after_its_time() -> None:
    fault = {"slot": "node000/gpu0", "kind": "slow", "percent": 300, "for_s": 0.005}
    spec = spec_with(speed=20, jitter=0.0, faults=[fault])
    assert await step_ms_of(spec) == pytest.approx(await step_ms_of(spec_with(speed=20, jitter=0.0)), rel=0.1)


async def test_the_cause_of_a_slow_fault_is_told_and_changes_no_step() -> None:
    fault = {"slot": "node000/gpu0", "kind": "slow", "percent": 25}
    because = spec_with(speed=20, jitter=0.0, faults=[{**fault, "because": "power"}])
    assert await step_ms_of(because) == pytest.approx(await step_ms_of(spec_with(speed=20, jitter=0.0, faults=[fault])), rel=0.01)
    assert engine_of(because, Listener()).facts()["planted_faults"] == ["slow +25 % at 0 s, because of power"]


async def test_memory_errors_slow_nothing() -> None:
    spec = spec_with(speed=20, jitter=0.0, faults=[{"slot": "node000/gpu0", "kind": "ecc"}])
    assert await step_ms_of(spec) == pytest.approx(await step_ms_of(spec_with(speed=20, jitter=0.0)), rel=0.01)
    assert engine_of(spec, Listener()).facts()["planted_faults"] == ["ecc at 0 s"]
    assert engine_of(spec, Listener(), life=1).facts()["planted_faults"] == []


async def test_a_stalled_replica_says_nothing_and_then_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = {"slot": "node000/gpu0", "kind": "stall", "at_s": 0.0, "for_s": 60.0}
    listener, clock = Listener(), Clock(monkeypatch)
    engine = engine_of(spec_with(speed=100, faults=[fault]), listener)
    await engine.start()
    await asyncio.sleep(0.02)
    engine.submit(request(0))
    await asyncio.sleep(0.1)
    assert listener.said == []
    assert engine.stats().waiting == 1
    clock.passes(61)
    await listener.until("complete", 1)
    await engine.stop()


async def test_a_crash_is_a_death_with_its_reason_and_nothing_after_it() -> None:
    fault = {"slot": "node000/gpu0", "kind": "crash", "at_s": 0.05}
    listener = Listener()
    engine = engine_of(spec_with(faults=[fault]), listener)
    await engine.start()
    engine.submit(request(0, expected=90))
    await asyncio.sleep(0.15)
    assert listener.deaths == ["planted fault: crash"]
    heard = len(listener.said)
    engine.submit(request(1))
    assert listener.said[heard:] == [("failed", Key(1, 1, 0), "planted fault: crash")]
    await asyncio.sleep(0.1)
    assert len(listener.said) == heard + 1
    await engine.stop()
    assert scheduler_of_running_loop().idle


async def test_a_flaky_slot_starts_at_its_third_life() -> None:
    spec = spec_with(faults=[{"slot": "node001/gpu0", "kind": "flaky_start", "times": 2}])
    for life in (0, 1):
        with pytest.raises(EngineError, match=f"flaky_start \\(life {life}"):
            await engine_of(spec, Listener(), slot="node001/gpu0", life=life).start()
    engine = engine_of(spec, Listener(), slot="node001/gpu0", life=2)
    await engine.start()
    await engine.stop()


async def test_a_slow_start_takes_longer() -> None:
    spec = spec_with(faults=[{"slot": "node001/gpu0", "kind": "slow_start", "delay_s": 0.2}])
    loop = asyncio.get_running_loop()
    usual_s = float("inf")
    for _ in range(3):  # the machine may stall
        began_s = loop.time()
        await engine_of(spec, Listener()).start()
        usual_s = min(usual_s, loop.time() - began_s)
    began_s = loop.time()
    await engine_of(spec, Listener(), slot="node001/gpu0").start()
    assert loop.time() - began_s >= max(0.2, usual_s)


# -- many replicas on one loop -------------------------------------------------------------------------------------------


async def test_replicas_that_share_a_loop_answer_their_own_requests_only() -> None:
    spec = spec_with(speed=30)
    listeners = [Listener() for _ in spec.slots()]
    engines = [engine_of(spec, listener, slot=slot) for slot, listener in zip(spec.slots(), listeners, strict=True)]
    for engine in engines:
        await engine.start()
    for seq in range(80):
        engines[seq % len(engines)].submit(request(seq))
    for position, listener in enumerate(listeners):
        await listener.until("complete", 10)
        assert {key.seq % len(engines) for _, key, _ in listener.said} == {position}
    for engine in engines:
        await engine.stop()
    assert scheduler_of_running_loop().idle


async def test_a_late_wake_up_delivers_late_and_does_not_shift_the_model() -> None:
    import time

    spec = spec_with(jitter=0.0)
    durations: dict[str, int] = {}

    class Timed(Listener):
        def complete(self, key: Key, tokens: bytes, queue_us: int, prefill_us: int, decode_us: int) -> None:
            super().complete(key, tokens, queue_us, prefill_us, decode_us)
            durations["late" if late else "calm"] = decode_us

    for late in (False, True):
        listener = Timed()
        engine = engine_of(spec, listener)
        await engine.start()
        engine.submit(request(0, expected=10))
        if late:
            await asyncio.sleep(0.04)
            time.sleep(0.3)  # noqa: ASYNC251 - the loop is blocked on purpose
        await listener.until("complete", 1)
        await engine.stop()
    assert durations["late"] == pytest.approx(durations["calm"], abs=1)


async def test_a_prompt_beyond_the_kv_cache_fails_with_a_reason() -> None:
    listener = Listener()
    engine = engine_of(spec_with(kv_tokens=70), listener)
    await engine.start()
    engine.submit(request(0, expected=90))
    assert listener.of("failed") == [Key(1, 0, 0)]
    assert "KV cache" in listener.said[0][2]
    await engine.stop()


# -- arguments and registry ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"presett": "demo"}, 'engine_args.presett = \'demo\'.*did you mean "preset"'),
        ({"preset": "mi355x/gpt-oss"}, 'did you mean "mi355x/gpt-oss-120b"'),
        ({"c0_ms": "fast"}, "engine_args.c0_ms = 'fast': must be a number"),
        ({"max_seqs": 2.5}, "engine_args.max_seqs = 2.5: must be a whole number"),
        ({"max_seqs": 4096}, "token_budget 2048 must be above max_seqs 4096"),
        ({"speed": 0}, "engine_args.speed = 0: must be above 0"),
        ({"jitter": 2}, "engine_args.jitter = 2: must be at least 0 and at most 0.5"),
        ({"faults": {}}, "faults = {}: must be a list"),
        ({"faults": [{"slot": "node000/gpu0", "kind": "slw", "percent": 5}]}, r'faults\[0\].kind = \'slw\'.*did you mean "slow"'),
        ({"faults": [{"slot": "node000/gpu9", "kind": "crash"}]}, r'faults\[0\].slot = \'node000/gpu9\': no such slot'),
        ({"faults": [{"kind": "crash"}]}, "must name a slot"),
        ({"faults": [{"slot": "node000/gpu0", "kind": "slow"}]}, r"faults\[0\].percent: needed by a slow fault"),
        ({"faults": [{"slot": "node000/gpu0", "kind": "crash", "at": 5}]}, 'not a field of a crash fault; did you mean "at_s"'),
        ({"faults": [{"slot": "node000/gpu0", "kind": "stall", "for_s": 0}]}, "for_s = 0: must be above 0"),
        ({"faults": [{"slot": "node000/gpu0", "kind": "ecc", "for_s": 5}]}, "for_s = 5: not a field of an ecc fault"),
        (
            {"faults": [{"slot": "node000/gpu0", "kind": "slow", "percent": 5, "because": "powr"}]},
            r'faults\[0\].because = \'powr\': no cause that a GPU shows; did you mean "power"',
        ),
        (
            {"faults": [{"slot": "node000/gpu0", "kind": "slow", "percent": -5, "because": "heat"}]},
            "because = 'heat': is for a percent above 0, and -5 makes it no slower",
        ),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_with_field_value_and_the_nearest_name(args: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        registry.check_args(spec_with(**args))


def test_an_unknown_engine_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(EngineError, match='did you mean "synthetic"'):
        registry.check_args(RunSpec.model_validate({"fleet": {"engine": "sinthetic"}}))
    with pytest.raises(EngineError, match="valid: openai, synthetic, vllm"):
        registry.factory("qqq")


def test_the_arguments_hash_ignores_faults_and_load_time_and_nothing_else() -> None:
    plain = registry.args_hash(spec_with())
    assert len(plain) == 12
    assert registry.args_hash(spec_with(preset="demo")) == plain
    assert registry.args_hash(spec_with(load_s=3.0)) == plain
    assert registry.args_hash(spec_with(faults=[{"slot": "node000/gpu0", "kind": "crash"}])) == plain
    assert registry.args_hash(spec_with(c0_ms=10)) != plain
    assert registry.args_hash(spec_with(model={"name": "other"})) != plain


def test_one_process_carries_the_replicas_of_the_nodes_of_its_worker() -> None:
    spec = RunSpec.model_validate({"fleet": {"nodes": 8, "replicas_per_node": 8}, "cluster": {"nodes_per_worker": 4}})
    assert registry.default_slots_per_process(spec) == 32
    assert registry.is_synthetic(spec)
    assert registry.names() == ["openai", "synthetic", "vllm"]


def test_facts_say_that_nothing_was_measured() -> None:
    fault = {"slot": "node000/gpu0", "kind": "slow", "percent": 25, "at_s": 10, "for_s": 60}
    engine = engine_of(spec_with(preset="mi355x/gpt-oss-120b", faults=[fault]), Listener())
    facts = engine.facts()
    assert facts["synthetic"] is True
    assert facts["constants"]["c0_ms"] == 15.0
    assert "not measured" in facts["constants_origin"]
    assert facts["planted_faults"] == ["slow +25 % at 10 s for 60 s"]
    assert engine.versions()["preset"] == "mi355x/gpt-oss-120b"


def test_arguments_are_facts_to_compare_and_a_planted_fault_is_not_one_of_them() -> None:
    fault = {"slot": "node000/gpu0", "kind": "slow", "percent": 25}
    planted = engine_of(spec_with(preset="demo", speed=2.0, faults=[fault]), Listener()).facts()
    healthy = engine_of(spec_with(preset="demo", speed=2.0), Listener()).facts()
    arguments = {name: value for name, value in planted.items() if name.startswith("arg.")}
    assert arguments == {name: value for name, value in healthy.items() if name.startswith("arg.")}
    assert (arguments["arg.preset"], arguments["arg.speed"], arguments["arg.jitter"]) == ("demo", 2.0, 0.01)
    assert "arg.faults" not in arguments
    other = engine_of(spec_with(preset="demo", speed=2.0, c0_ms=3.5), Listener()).facts()
    assert [name for name in arguments if other[name] != arguments[name]] == ["arg.c0_ms"]


def test_arguments_told_are_bounded_in_number_and_length() -> None:
    facts = argument_facts({f"name{n:03d}": "x" * 1000 for n in range(100)} | {"a": {"deep": [1, 2]}, "b": None})
    assert len(facts) == 65
    assert facts["arguments_left_out"] == 102 - 64
    assert (facts["arg.a"], facts["arg.b"]) == ('{"deep":[1,2]}', None)
    assert len(facts["arg.name000"]) == 120
