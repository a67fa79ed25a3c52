"""The lines at the top: which run this is and how fresh the picture, and where the run stands."""

from __future__ import annotations

import math
import textwrap
import time
from typing import Any, Final, cast

from rich.style import Style
from textual.strip import Strip

from console.store.fleet import FleetStore
from console.widgets import fmt, pods
from console.widgets.gpus import proposal, source_cell
from console.widgets.paint import Painted, Run, size_of, spread, strip_of
from harness.wire.states import RUN_PHASES

_WAY = ("PLACING", "REGISTERING", "WARMING", "READY", "MEASURING", "DRAINING", "DONE")
_SHORT = {"PLACING": "place", "REGISTERING": "register", "WARMING": "warm", "READY": "ready", "MEASURING": "measure"}
_NAME_MIN: Final = 14  # of a run's name: below that its two ends no longer tell runs apart
_NAME_MAX: Final = 40


class HeaderLine(Painted):
    """`where` is the crumb and is never cut; the run's name gives up its middle, then the attempt's words go. Without a store
    it is about whichever run is open: for screens that outlive one."""

    def __init__(self, store: FleetStore | None, where: str, *, looks_only: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self._store, self._where, self._looks_only = store, where, looks_only

    def draw(self, width: int, height: int) -> list[Strip]:
        store, looks_only = self._of()
        ink, snap = self.inks, store.snapshot
        wide = width >= 100
        badges: list[Run] = []
        if store.synthetic:
            badges += [("  ", ink.plain), (" SYNTHETIC ", ink.badge)]
        if looks_only or store.role == "viewer":
            badges += [("  ", ink.plain), (" READ-ONLY ", ink.badge)]
        if self._frozen:
            badges += [("  ", ink.plain), (" ❄ PICTURE FROZEN (F) ", ink.badge)]
        elif not self._armed:
            badges += [("  ", ink.plain), (" ○ DISARMED ", ink.badge)]
        where: list[Run] = [(" ▸ ", ink.faint), (self._where, ink.plain)]
        right: list[Run] = []
        if snap is not None and snap.paused and not store.ended:
            right += [("❚❚ PAUSED  ", ink.warn)]
        right += self._link(store)
        if pods.trouble(store):
            age_s = store.cluster.age_s(store.unix)
            right += [(f"  ▲ {'cluster view' if wide else 'pods'} {fmt.age(age_s)}{' old' if wide else ''}", ink.warn)]
        source, stands = source_cell(store, short=not wide) if not store.ended else ("", "")
        told = source and (wide or stands == "warn" or self._roomy(store, width, [*badges, *where, *right], source))
        if told:
            right += [(f"  {source}", ink.warn if stands == "warn" else ink.muted)]
        if store.controller and wide and not store.ended:
            right += [(f"  control: {store.controller}", ink.muted)]
        right += [self._clock(store, wide)]
        run, words = store.run or "no run yet", self._words(store, wide)
        room = width - 3 - size_of(badges) - size_of(where) - size_of(right) - 2
        if room - len(words) < min(len(run), _NAME_MAX if told and not wide else _NAME_MIN):
            words = ""
        name = fmt.middle(run, max(8, min(_NAME_MAX, room - len(words))))
        left: list[Run] = [(" ◢ ", ink.primary), (name, ink.bold), *badges, (words, ink.muted), *where]
        return [strip_of(spread(left, right, width), width)]

    @staticmethod
    def _roomy(store: FleetStore, width: int, others: list[Run], source: str) -> bool:
        """A narrow line has room for it beside the whole name of the run, its clock and what separates them."""
        return width - size_of(others) - len(source) - 2 - len("  00:00:00 ") - 6 >= min(len(store.run), _NAME_MAX)

    def _clock(self, store: FleetStore, wide: bool) -> Run:
        """In a replay the record's, with its day: that is the time of all that is shown."""
        app, snap = cast(Any, self.app), store.snapshot
        if app.session.kind == "replay" and snap is not None:
            return time.strftime(f"  {'%m-%d ' if wide else ''}%H:%M:%S ", time.localtime(snap.unix)), self.inks.primary
        return time.strftime("  %H:%M:%S ", time.localtime(app.wall_s())), self.inks.muted

    def _of(self) -> tuple[FleetStore, bool]:
        app = cast(Any, self.app)
        return (self._store, self._looks_only) if self._store is not None else (app.store, app.looks_only)

    @property
    def _frozen(self) -> bool:
        return bool(getattr(self.app, "frozen", False))

    @property
    def _armed(self) -> bool:
        operator = getattr(self.app, "operator", None)
        return operator is None or operator.armed

    @staticmethod
    def _words(store: FleetStore, wide: bool) -> str:
        attempt = store.attempt
        if attempt is None:
            return ""
        kind = "" if attempt.kind == "performance" else attempt.kind
        words = [attempt.scenario, kind, f"attempt {attempt.number}" if wide else ""]
        return "  " + " · ".join(word for word in words if word)

    def _link(self, store: FleetStore) -> list[Run]:
        ink, link, session = self.inks, store.link(), cast(Any, self.app).session
        if session.kind == "replay":
            return [(session.feed.label(), ink.primary)]
        if link.kind == "live":
            return [("● live", ink.good)]
        if link.kind == "ended":
            return [("◆ ended", ink.muted)]
        if link.kind == "connecting" and session.kind == "none":
            return []
        if link.kind == "connecting":
            return [("▲ no head", ink.bad) if store.run else ("○ connecting", ink.warn)]
        word = "silent" if link.kind == "stale" else "head lost"
        return [(f"▲ {word} {fmt.age(link.age_s)}", ink.warn if link.kind == "stale" else ink.bad)]


def source_words(store: FleetStore) -> str:
    """Where GPU metrics come from, in the header's words."""
    return source_cell(store)[0] or "no GPU metrics"


class PhaseStrip(Painted):
    """`place › register › … MEASURING 07:42/20:00`, then how far both minimums are and when the attempt can end; while it
    stops or drains, what it still waits for. Below it what cannot be seen of the cluster, and whom an alert proposes to evict.
    Without a head: why, and the remedy,
    on as many lines as that takes."""

    def __init__(self, store: FleetStore, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._store = store

    def draw(self, width: int, height: int) -> list[Strip]:
        store = self._store
        link = store.link()
        if not store.phase or (not link.trusted and link.detail):
            return self._trouble(link.detail or "waiting for the head's first answer", width)
        unseen = [*self._unseen(width), *self._proposed(width)]
        self.set_lines(1 + len(unseen))
        progress = self._progress(width)
        way = self._way()
        if size_of(way) + size_of(progress) + 2 > width:
            way = [(f" {store.phase}", self._phase_style(store.phase))]
        return [strip_of(spread(way, progress, width), width), *unseen]

    def _unseen(self, width: int) -> list[Strip]:
        """What cannot be seen of the cluster. The figures of the run do not come from there."""
        told = pods.trouble(self._store)
        if not told:
            return []
        rest = "; the run goes on, its figures are fresh"
        told += rest if len(told) + len(rest) + 4 <= width else ""
        return [strip_of([(f" ▲ {fmt.clause(told, width - 4)}", self.inks.warn)], width)]

    def _proposed(self, width: int) -> list[Strip]:
        """One line: `▲ node003/gpu1: 2 uncorrectable memory errors: e on its row evicts it`."""
        store, ink = self._store, self.inks
        rows = [] if store.ended else [row for row in store.gpus.proposals() if self._there(row.subject)]
        if not rows:
            return []
        does = f": e on its row evicts it{f' (and {len(rows) - 1} more)' if len(rows) > 1 else ''}"
        told = fmt.clause(proposal(rows[0]), width - len(does) - 4)
        return [strip_of([(f" ▲ {told}", ink.bad), (does, ink.muted)], width)]

    def _there(self, subject: str) -> bool:
        """Not evicted already; of a node nobody knows that at a glance."""
        at = self._store.index.get(subject)
        return at is None or self._store.state_name(at) not in ("EVICTED", "LOST", "REJECTED", "STOPPED")

    def _trouble(self, why: str, width: int) -> list[Strip]:
        ink = self.inks
        style = ink.warn if self._store.phase else ink.muted
        way = self._way() if self._store.phase else []
        if size_of(way) + len(why) + 4 > width:
            way = []
        lines = [why] if way else textwrap.wrap(why, max(10, width - 2), break_on_hyphens=False)
        self.set_lines(len(lines))
        return [
            strip_of([*(way if row == 0 else []), ("   " if way else " ", style), (text, style)], width)
            for row, text in enumerate(lines)
        ]

    def _phase_style(self, phase: str) -> Style:
        ink = self.inks
        return (ink.bad if phase in ("FAILED", "ABORTED") else ink.primary) + Style(bold=True)

    def _way(self) -> list[Run]:
        ink, phase = self.inks, self._store.phase
        way = _WAY if phase in _WAY else (*_WAY[:-1], phase)
        at = way.index(phase) if phase in RUN_PHASES else -1
        runs: list[Run] = [(" ", ink.plain)]
        for step, name in enumerate(way):
            if step:
                runs.append((" › ", ink.rule))
            if step == at:
                runs.append((name, self._phase_style(phase)))
            else:
                runs.append((_SHORT.get(name, name.lower()), ink.muted if step < at else ink.faint))
        return runs

    def _progress(self, width: int) -> list[Run]:
        store, ink, snap = self._store, self.inks, self._store.snapshot
        if snap is None or store.ended:
            return []
        if store.ending:
            return self._ending(width)
        if snap.phase != "MEASURING":
            return []
        if snap.duration_s <= 0:
            return [(f"{fmt.clock(snap.elapsed_s)} elapsed, no end set ", ink.muted)]
        progress = store.progress()
        room = 12 if width >= 110 else 8
        runs: list[Run] = [(f"{fmt.clock(snap.elapsed_s)}", ink.plain)]
        if snap.elapsed_s <= progress.planned_s:
            runs += [
                (f"/{fmt.clock(progress.planned_s)} ", ink.muted), (fmt.bar(progress.duration, room), ink.primary),
                (f" {progress.duration * 100:.0f}%", ink.muted),
            ]  # fmt: skip
        else:
            runs.append((f", planned {fmt.clock(progress.planned_s)}", ink.muted))
        if not math.isnan(progress.queries):
            runs += [("  queries ", ink.muted), (f"{math.floor(progress.queries * 100)}%", ink.plain)]
        if not math.isnan(progress.eta_s):
            runs += [("  ETA ", ink.muted), (fmt.clock(progress.eta_s), ink.plain)]
        return [*runs, (" ", ink.plain)]

    def _ending(self, width: int) -> list[Run]:
        """`draining 02:45 · 1,413 in flight · oldest 44s`"""
        store, ink, snap = self._store, self.inks, self._store.snapshot
        if snap is None:
            return []
        since = f" {fmt.clock(snap.unix - snap.phase_since_unix)}" if snap.phase == "DRAINING" else ""
        oldest_s = store.oldest_s() if snap.in_flight else math.nan
        oldest = "" if math.isnan(oldest_s) else f" · oldest {fmt.age(oldest_s)}"
        return [(store.ending + since, ink.warn), (f" · {fmt.count(snap.in_flight)} in flight{oldest} ", ink.plain)]
