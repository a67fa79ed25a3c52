"""The console without a screen: `paceline attach --once`, `--json`, `--follow` and `--plain`.

Same feed, same store, same tables as the screens; nothing is drawn, nothing of Textual is imported. They hold the viewer's
key: a twin cannot act. Leaving one (Ctrl-C) changes nothing for the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from console.cli import pages
from console.cli.errors import NOT_VALID, OK, BadInput, exit_code_of
from console.cli.output import json_text, note, say, say_json, typed
from console.cli.page import Page
from console.feeds.base import Feed, NoFeed
from console.feeds.head import HeadFeed
from console.plain import Narrator, ended, opening, stamped
from console.starting import wait_for_head_to_end
from console.store import tables
from console.store.fleet import FleetStore
from console.store.record import over, summary_of
from console.store.sla_tables import ended_percentiles, sla_tables
from console.store.view import BadSort, TableView
from harness.cluster.local import head_alive
from harness.records.layout import RunFolder
from harness.records.runfile import read_run
from harness.wire.client import HeadUnreachable
from harness.wire.inquiry import GetReplica, GetSla, ReplicaDetail, SlaDetail

ScreenName = Literal["live", "fleet", "nodes", "sla", "events", "replica"]

WIDTH: Final = 120  # of a page when nobody says how wide it may be
HEARD_WITHIN_S: Final = 6.0
LOOK_EVERY_S: Final = 0.25
FOLLOW_EVERY_S: Final = 1.0
STATUS_EVERY_S: Final = 30.0
GONE_AFTER_S: Final = 5.0  # a head that is being started again needs about a second
_LAST_STEPS_S: Final = 60.0
#: Orders that a record's figures by replica can be put in.
_MEASURED: Final = {"worst": "tpot_p99_ms", "tok/s": "tokens_per_s", "ttft": "ttft_p99_ms", "tpot": "tpot_p99_ms"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to show of the run; checked before anybody is asked."""

    screen: ScreenName = "live"
    slot: str = ""
    filter: str = ""
    sort: str = ""

    def check(self) -> None:
        if (self.filter or self.sort) and self.screen != "fleet":
            raise BadInput("--filter and --sort go with --screen fleet")
        self.view()
        if (self.screen == "replica") != bool(self.slot):
            raise BadInput("--screen replica and --slot NODE/GPU go together, as in --screen replica --slot node003/gpu1")

    def view(self) -> TableView:
        """As the Fleet screen would have it. Raises BadInput for an order or a filter that cannot be read."""
        view = TableView()
        try:
            if self.sort:
                view.sort_by(self.sort)
        except BadSort as problem:
            raise BadInput(f"--sort: {problem}") from problem
        if problem_text := view.filter(self.filter):
            raise BadInput(f"--filter: {problem_text}")
        return view


@dataclass(slots=True)
class Watched:
    """One run as a twin sees it. `gone`: it has no head and did not end; the record is all there is."""

    folder: RunFolder
    store: FleetStore
    feed: Feed
    gone: bool = False

    async def heard(self, within_s: float = HEARD_WITHIN_S) -> None:
        """Until there is something to show. Raises HeadUnreachable."""
        until_s = time.monotonic() + within_s
        while self.store.snapshot is None and not self.store.ended and not self.gone:
            if time.monotonic() > until_s:
                why = self.store.link_note or f"nothing was heard of it for {within_s:g} s"
                raise HeadUnreachable(f"{self.folder.name}: {why.removeprefix(f'{self.folder.name}: ')}")
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def watching(folder: RunFolder) -> AsyncIterator[Watched]:
    store = FleetStore()
    state = over(folder.path)
    if state is not None:
        store.apply_record(state)
        yield Watched(folder, store, NoFeed(), gone=not store.ended)
        return
    feed = HeadFeed(folder.path, "viewer")
    following = asyncio.create_task(feed.follow(store))
    try:
        yield Watched(folder, store, feed)
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        await feed.close()


# --- one look ----------------------------------------------------------------------------------------------


def once(folder: RunFolder, wanted: Wanted, *, as_json: bool) -> int:
    """One page or one object. 1 when the run has no head and did not end: what is shown is old."""
    return asyncio.run(_once(folder, wanted, as_json))


async def _once(folder: RunFolder, wanted: Wanted, as_json: bool) -> int:
    async with watching(folder) as run:
        await run.heard()
        found = await _tables(run, wanted)
        if as_json:
            say_json(_object(run, wanted, found))
        else:
            say(_page(run, wanted, found))
    if run.gone:
        note(f"{folder.name}: head gone; `{typed(f'restart-head {folder.name}')}` starts a new one on the warm fleet")
    return NOT_VALID if run.gone else OK


async def _tables(run: Watched, wanted: Wanted) -> tables.Tables:
    store = run.store
    if wanted.screen == "fleet":
        return await _fleet(run, wanted)
    if wanted.screen == "nodes":
        return tables.nodes(store)
    if wanted.screen == "events":
        return tables.events(store.journal)
    if wanted.screen == "sla":
        summary = {"sla": tables.sla_rows(store)}
        if isinstance(run.feed, NoFeed):
            attempts = read_run(run.folder.path).attempts
            return summary | {"percentiles": ended_percentiles(attempts[-1]) if attempts else []}
        sla = await run.feed.ask(GetSla(uuid.uuid4().hex))
        return summary | sla_tables(sla, [info.slot for info in store.slots]) if isinstance(sla, SlaDetail) else summary
    if wanted.screen == "replica":
        if wanted.slot not in store.index:
            raise BadInput(f"--slot: {run.folder.name} has no replica {wanted.slot!r}; {_some_slots(store)}")
        detail = await run.feed.ask(GetReplica(uuid.uuid4().hex, wanted.slot, log_lines=40))
        return tables.replica(store, wanted.slot, detail if isinstance(detail, ReplicaDetail) else None)
    return tables.live(store)


async def _fleet(run: Watched, wanted: Wanted) -> tables.Tables:
    store, view = run.store, wanted.view()
    view.reorder(store, 0.0)
    if not (store.ended or run.gone) or store.attempt is None:
        return tables.fleet(store, view.rows)
    summary = await asyncio.to_thread(summary_of, run.folder.path, store.attempt.number)
    for problem in summary.problems:
        note(f"{run.folder.name}: {problem}")
    found = tables.ended_fleet(store, view.rows, summary)
    key = _MEASURED.get(view.sort.name, "")
    if key:  # the view knows live figures only
        down = view.downward
        found["replicas"].sort(key=lambda row: (row[key] is None, -(row[key] or 0.0) if down else row[key] or 0.0))
    return found


def _some_slots(store: FleetStore) -> str:
    slots = [info.slot for info in store.slots]
    return f"it has {slots[0]} to {slots[-1]}" if slots else "its fleet is not known yet"


def _object(run: Watched, wanted: Wanted, found: tables.Tables) -> dict[str, Any]:
    store, link = run.store, run.store.link()
    return {
        "screen": wanted.screen, "run": store.run, "phase": store.phase, "synthetic": store.synthetic,
        "taken_unix": store.snapshot.unix if store.snapshot is not None else None,
        "link": "gone" if run.gone else link.kind, "heard_s_ago": None if run.gone or store.ended else round(link.age_s, 3),
        "tables": found,
    }  # fmt: skip


def _page(run: Watched, wanted: Wanted, found: tables.Tables) -> str:
    page = Page(_width(), bold=may_escape())
    about = tables.live(run.store)["run"][0] if wanted.screen != "live" else found["run"][0]
    if wanted.screen == "live":
        pages.live_page(page, found)
    elif wanted.screen == "fleet":
        order = f"order: {wanted.view().order_words}" + (f", filter {wanted.filter}" if wanted.filter else "")
        pages.fleet_page(page, about, found, order)
    elif wanted.screen == "nodes":
        pages.nodes_page(page, about, found)
    elif wanted.screen == "events":
        pages.events_page(page, about, list(run.store.journal))
    elif wanted.screen == "replica":
        pages.replica_page(page, about, found)
    else:
        pages.sla_page(page, about, found, found["sla"])
    return str(page)


def _width() -> int:
    """$COLUMNS, else the terminal's, else 120."""
    return max(40, shutil.get_terminal_size((WIDTH, 40)).columns)


def may_escape() -> bool:
    """Bold is all that is ever used; a pipe, a dumb terminal and NO_COLOR get none."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


# --- following ---------------------------------------------------------------------------------------------


def follow_json(folder: RunFolder, wanted: Wanted) -> int:
    """One object a second, one a line, until the run ends; then its exit code. Of `series` only what is new."""
    told_unix = -1.0

    async def tell(run: Watched) -> None:
        nonlocal told_unix
        found = await _tables(run, wanted)
        if series := found.get("series"):
            found["series"] = [row for row in series if row["unix"] > told_unix]
            told_unix = max(told_unix, series[-1]["unix"])
        sys.stdout.write(json_text(_object(run, wanted, found)) + "\n")
        sys.stdout.flush()

    return asyncio.run(_follow(folder, tell, FOLLOW_EVERY_S))


def follow_plain(folder: RunFolder, every_s: float) -> int:
    """One sentence for each event and a status every so often, until the run ends; then its exit code."""
    narrator = Narrator(every_s)

    async def tell(run: Watched) -> None:
        for line in narrator.tell(run.store, time.monotonic()):
            say(line)
        if run.gone:
            say(stamped(opening(run.store)))
        elif run.store.ended:
            say(stamped(ended(run.store)))
        sys.stdout.flush()

    return asyncio.run(_follow(folder, tell, LOOK_EVERY_S))


async def _follow(folder: RunFolder, tell: Callable[[Watched], Any], every_s: float) -> int:
    left = asyncio.Event()
    with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):  # not the main thread: nobody presses Ctrl-C there
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, left.set)
    async with watching(folder) as run:
        hearing = asyncio.ensure_future(run.heard(max(HEARD_WITHIN_S, 10 * every_s)))
        leaving = asyncio.ensure_future(left.wait())
        await asyncio.wait({hearing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not left.is_set():
            await hearing
        hearing.cancel()
        while not left.is_set():
            await _settle(run)
            await tell(run)
            if run.gone or run.store.ended:
                break
            await asyncio.wait({leaving}, timeout=every_s)
        leaving.cancel()
    return _how_it_ended(run, left.is_set() and not run.store.ended)


async def _settle(run: Watched) -> None:
    """What the store cannot know by itself: that the head is gone for good, or that the last figures are in the record."""
    store = run.store
    if store.ended and store.attempt is not None and store.attempt.state != "ENDED":
        await asyncio.sleep(0.5)  # the roster with the attempt's results is published right after the last snapshot
    if store.link().kind in ("stale", "lost") and store.link().age_s > GONE_AFTER_S and not head_alive(run.folder):
        state = over(run.folder.path)
        if state is not None:
            store.apply_record(state)
            run.gone = not store.ended


def _how_it_ended(run: Watched, left: bool) -> int:
    name = run.folder.name
    if left:
        attach, stop = typed(f"attach {name}"), typed(f"stop {name}")
        note(f"{name} goes on. `{attach}` opens it again, `{stop}` ends it.")
        return OK
    if run.gone:
        note(f"{name}: head gone; `{typed(f'restart-head {name}')}` starts a new one on the warm fleet")
        return NOT_VALID
    wait_for_head_to_end(run.folder, _LAST_STEPS_S)  # it writes the verdict before it goes
    record = read_run(run.folder.path)
    return exit_code_of(record.verdict, record.phase)
