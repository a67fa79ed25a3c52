"""What the supervisor tells a driver before it starts: one JSON file in the attempt's folder."""

from __future__ import annotations

from pathlib import Path

import msgspec

from harness.spec import RunSpec


class DriverConfig(msgspec.Struct):
    run: str
    attempt: int
    epoch: int
    spec: str  # RunSpec as JSON, with this attempt's kind and rate
    slots: list[str]  # the roster, in order
    expect: int  # replicas to wait for before the load starts
    pair: str  # ipc endpoint of the supervisor
    bind: str  # address of the data socket, port 0
    advertise: str | None
    keys: str  # folder
    folder: str  # attempts/<n>
    dataset_base: str  # folder that relative dataset paths start from
    wait_s: float = 15.0

    def run_spec(self) -> RunSpec:
        return RunSpec.model_validate_json(self.spec)

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self))

    @classmethod
    def load(cls, path: Path) -> DriverConfig:
        return msgspec.json.decode(path.read_bytes(), type=cls)
