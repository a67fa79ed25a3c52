"""What operators may want of the next attempt: its kind has to suit the fleet that is there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from head_kit import a_spec

from harness.head.acts import Refused
from harness.head.operations import Operations, Wanted
from harness.spec import RunSpec
from harness.wire import states


class Idle:
    """A head whose fleet is warm between two attempts."""

    attempt = None
    phase = states.READY
    book = SimpleNamespace(next_number=2)

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec

    def spec_of(self, wanted: Wanted) -> RunSpec:
        load = self.spec.load.model_copy(update={"kind": wanted.kind, "target_qps": wanted.qps})
        return self.spec.model_copy(update={"load": load})


def operations(model: Path, **engine_args: Any) -> Operations:
    fleet = {"engine": "vllm", "engine_args": engine_args}
    spec = a_spec(1, 1, fleet=fleet, load={"kind": "explore"}, model={"path": str(model), "vocab_size": 512})
    return Operations(Idle(spec), spec)  # type: ignore[arg-type]


@pytest.fixture(params=["the model is here", "the head has no model"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "the head has no model":
        return tmp_path / "elsewhere"
    (tmp_path / "config.json").write_text('{"model_type": "llama", "vocab_size": 512}')
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return tmp_path


@pytest.mark.parametrize("kind", ["performance", "accuracy"])
def test_a_fleet_that_was_started_to_explore_with_prefix_caching_gets_no_loadgen_attempt(model: Path, kind: str) -> None:
    ops = operations(model, enable_prefix_caching=True)
    ops.start_attempt("explore", 3.0, "ann", "")
    with pytest.raises(Refused, match=f"no {kind} attempt on this fleet: .*enable_prefix_caching = True: MLPerf forbids it"):
        ops.start_attempt(kind, 3.0, "ann", "")
    assert ops.wanted == Wanted("explore", 3.0)


def test_what_the_engine_says_of_every_attempt_of_the_run_stops_none(model: Path) -> None:
    ops = operations(model)
    ops.start_attempt("performance", 3.0, "ann", "")
    assert ops.wanted == Wanted("performance", 3.0)
