"""All that the head knows of the pod behind a replica, as lines that scroll: asked for again while it is open. In a replay and
after the end there is no head to ask: then what the record has."""

from __future__ import annotations

import asyncio
import textwrap
import uuid
from collections.abc import Sequence
from typing import ClassVar, Final, cast

from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content

from console.screens.base import ConsoleApp
from console.screens.overlay import LinesOver
from console.store.described import described
from console.store.fleet import FleetStore
from console.widgets import pods
from harness.wire.inquiry import Description, GetDescription

ASK_EVERY_S: Final = 5.0
LOOK_EVERY_S: Final = 1.0  # at the record
_LEAST_WIDTH: Final = 40
_LABEL: Final = 13  # columns that a head's labels take
_ALARMING: Final = ("Warning", "Failed", "OOMKilled", "BackOff", "NotReady", "Unschedulable", "Evicted")


class DescribeScreen(LinesOver):
    BINDINGS: ClassVar = [Binding("y", "copy", "Copy", show=False)]

    def __init__(self, store: FleetStore, slot: str) -> None:
        super().__init__()
        self._store, self._slot = store, slot
        self._lines: list[str] = []

    def compose(self) -> ComposeResult:
        recorded = self._from_record
        title = f"Pod of {self._slot}" + (" · from the record" if recorded else "")
        yield from self.framed(title, "↑ ↓ PgUp PgDn scroll · y copies · esc closes", "" if recorded else "asking the head …")

    def on_resize(self) -> None:
        if self._lines:
            self.call_after_refresh(self._show, "")

    def on_mount(self) -> None:
        self.run_worker(self._ask_for_ever(), group="description", exclusive=True)

    @property
    def _consoles(self) -> ConsoleApp:
        return cast(ConsoleApp, self.app)

    async def _ask_for_ever(self) -> None:
        while True:
            if self._from_record:
                self._lines = described(self._store, self._slot)
                self._show("")
                await asyncio.sleep(LOOK_EVERY_S)
                continue
            answer = await self._consoles.inquire(GetDescription(uuid.uuid4().hex, self._slot))
            if isinstance(answer, Description):
                self._lines = list(answer.lines)
                self._show(answer.problem)
            elif not self._lines:
                self._say("the head does not answer")
            await asyncio.sleep(ASK_EVERY_S)

    @property
    def _from_record(self) -> bool:
        return self._store.ended or self._consoles.session.kind == "replay"

    def _show(self, problem: str) -> None:
        """What is old is said to be so: the head answers from what it has seen."""
        unseen = pods.trouble(self._store)
        first = [Content.styled(f"▲ {text}", "$warning") for text in (unseen, problem) if text]
        lines = _styled(self._lines, max(_LEAST_WIDTH, self.room))
        self.put(Content("\n").join([*first, *lines]))

    def _say(self, text: str) -> None:
        self.put(Content.styled(text, "$ink-muted"))

    def action_copy(self) -> None:
        if self._lines:
            self._consoles.copy("\n".join(self._lines), "description")


def _styled(lines: Sequence[str], width: int) -> list[Content]:
    """Headings stand at the left edge; what went wrong stands out. Of a long line the rest stands below its text."""
    styled = []
    for line in lines:
        alarming = any(word in line for word in _ALARMING)
        style = "$warning" if alarming else "$foreground" if line.startswith(" ") else "$foreground bold"
        indent = " " * (len(line) - len(line.lstrip()) + 2 if line.startswith(" ") else _LABEL)
        parts = textwrap.wrap(line, width, subsequent_indent=indent, drop_whitespace=True, break_on_hyphens=False) or [""]
        styled += [Content.styled(part, style) for part in parts]
    return styled


def describe(app: ConsoleApp, slot: str | None) -> DescribeScreen | None:
    """The screen of that slot's pod; None, and why is told, where there is no pod to describe."""
    if app.store.cluster.view is None:
        app.tell(_nothing(app.store), "Describe the pod", "warning")
    elif slot is None:
        app.tell("no replica under the cursor", "Describe the pod", "warning")
    else:
        return DescribeScreen(app.store, slot)
    return None


def _nothing(store: FleetStore) -> str:
    if store.spec is not None and store.spec.cluster.kind == "kubernetes":
        return "nothing is known of the pods of this run yet, or nothing was recorded of them"
    return "the workers of this run are no pods: there is nothing to describe"
