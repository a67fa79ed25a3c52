"""Notes in the journal which replicas run another MoE kernel or table than most of their node class, and when that is over."""

from __future__ import annotations

from harness.head.journal import Journal
from harness.head.roster import Roster
from harness.metrics.kernels import Odd, Replica, odd_ones, splits, summary

#: New ones at once of which each gets an entry; of more there is one that counts them.
_EACH_TOLD = 8
_NAMED = 3


class KernelWatch:
    def __init__(self, roster: Roster, journal: Journal) -> None:
        self._roster, self._journal = roster, journal
        self._version = -1
        self._odd: dict[str, Odd] = {}
        self._split: list[str] = []
        self._told: dict[str, tuple[str, str]] = {}  # who is known to differ → its life and in what, until it is alike again

    def look(self) -> None:
        """Once a second; it costs something when the roster has changed. Of a replica that is not there now nothing is known;
        in its next life it is told whether it differs still."""
        if self._roster.version == self._version:
            return
        self._version = self._roster.version
        there = [(replica, replica.registered) for replica in self._roster.replicas if replica.alive]
        replicas = [Replica(one.slot, one.role, about.facts) for one, about in there if about]
        self._odd, split = odd_ones(replicas), splits(replicas)
        for line in split:
            if line not in self._split:
                self._journal.note("kernel.differs", why=line, level="warn")
        self._split = split
        before, lives = self._told, {replica.slot: replica.incarnation for replica, about in there if about}
        now = {slot: (lives[slot], odd.cause) for slot, odd in self._odd.items()}
        news = [odd for slot, odd in self._odd.items() if before.get(slot) != now[slot]]
        if len(news) > _EACH_TOLD:
            self._tell_many(news)
        else:
            for odd in news:
                self._journal.note("kernel.differs", subject=odd.slot, why=odd.why, level="warn", node_class=odd.node_class)
        again = [slot for slot in before if slot in lives and slot not in self._odd]
        self._told = {slot: told for slot, told in before.items() if slot not in lives} | now
        for slot in again[:_EACH_TOLD]:
            self._journal.note("kernel.alike", subject=slot, why="its MoE kernel and table differ no more from its node class's")
        if len(again) > _EACH_TOLD:
            why = f"nor do those of {len(again) - _EACH_TOLD:,d} more"
            self._journal.note("kernel.alike", why=why)

    def cause_of(self, slot: str) -> str:
        """Beside a straggler, or a node of them; "" for what runs as most do, and for a node whose replicas are not odd alike."""
        slots = [one.slot for one in self._roster.replicas if slot in (one.slot, one.slot.partition("/")[0])]
        causes = {self._odd[one].cause if one in self._odd else "" for one in slots}
        return causes.pop() if len(causes) == 1 else ""

    def _tell_many(self, news: list[Odd]) -> None:
        lines = summary({odd.slot: odd for odd in news})
        named = ", ".join(odd.slot for odd in news[:_NAMED])
        why = f"{'; '.join(lines)}: {named} and {len(news) - _NAMED:,d} more, the first with another {news[0].cause}"
        self._journal.note("kernel.differs", why=why, level="warn", slots=[odd.slot for odd in news])
