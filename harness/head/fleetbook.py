"""Keeps fleet.json: notes where each replica stands and what it is made of when it becomes READY, and writes that down between
attempts."""

from __future__ import annotations

from harness.head.gpuplaces import hosts_of, listed
from harness.head.roster import Replica
from harness.records.errors import RecordError
from harness.records.fleetfile import FleetFile, GpusOf, flat_facts, read_fleet, write_fleet
from harness.records.layout import RunFolder
from harness.spec import RunSpec


class FleetBook:
    def __init__(self, folder: RunFolder, spec: RunSpec) -> None:
        """Continues what the head before this one has written; a file that cannot be read is begun anew."""
        self._path = folder.fleet_json
        devices = max(1, spec.fleet.layout.devices)
        try:
            before = read_fleet(self._path)
        except RecordError:
            before = None
        self.fleet = before if before is not None and before.devices == devices else FleetFile(devices)
        self._news = False

    def note(self, replica: Replica, unix: float) -> None:
        about = replica.registered
        if about is None:
            return
        gpus, uuids, pcis = (listed(about.accelerator.get(name, "")) for name in ("gpus", "uuids", "pcis"))
        where = GpusOf(unix, list(hosts_of(replica)), about.pod, gpus, uuids, pcis)
        facts = {
            "engine": about.engine, "role": about.role, "model": about.model, "args_hash": about.args_hash,
            "versions": about.versions, **about.facts,
        }  # fmt: skip
        self._news |= self.fleet.note(replica.slot, where, flat_facts(facts))

    def save(self) -> None:
        """If there is news. Raises RecordError."""
        if self._news:
            write_fleet(self._path, self.fleet)
            self._news = False
