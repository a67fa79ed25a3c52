"""The lines at the top: which run this is and how fresh the picture, where the run stands, and how it ended."""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Callable

from textual.strip import Strip

from console.store.fleet import FleetStore
from console.widgets import fmt
from console.widgets.paint import Painted, Run, spread, strip_of
from harness.wire.states import RUN_PHASES

_WAY = ("PLACING", "REGISTERING", "WARMING", "READY", "MEASURING", "DRAINING", "DONE")
REASON_LINES = 3
_SHORT = {"PLACING": "place", "REGISTERING": "register", "WARMING": "warm", "READY": "ready", "MEASURING": "measure"}


class HeaderLine(Painted):
    def __init__(self, store: FleetStore, where: str, right_word: Callable[[], str], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._store, self._where, self._right_word = store, where, right_word

    def draw(self, width: int, height: int) -> list[Strip]:
        store, ink = self._store, self.inks
        snap = store.snapshot
        wide = width >= 100
        left: list[Run] = [(" ◢ ", ink.primary), (fmt.middle(store.run or "no run yet", 36 if wide else 22), ink.bold)]
        if store.synthetic:
            left += [("  ", ink.plain), (" SYNTHETIC ", ink.badge)]
        if snap is not None:
            kind = {"performance": "", "explore": "explore", "accuracy": "accuracy"}.get(snap.attempt_kind, snap.attempt_kind)
            words = [word for word in (snap.scenario, kind, f"attempt {snap.attempt}" if snap.attempt and wide else "") if word]
            left += [("  " + " · ".join(words), ink.muted)]
        left += [(" ▸ ", ink.faint), (self._where, ink.plain)]
        right: list[Run] = []
        if snap is not None and snap.paused:
            right += [("❚❚ PAUSED  ", ink.warn)]
        right += self._link(wide)
        word = self._right_word()
        if word and wide:
            right += [(f"  {word}", ink.muted)]
        right += [(time.strftime("  %H:%M:%S "), ink.muted)]
        return [strip_of(spread(left, right, width), width)]

    def _link(self, wide: bool) -> list[Run]:
        ink, link = self.inks, self._store.link()
        if link.kind == "live":
            return [("● live", ink.good)]
        if link.kind == "ended":
            return [("◆ ended", ink.muted)]
        if link.kind == "connecting":
            return [("○ connecting", ink.warn)]
        word = "silent" if link.kind == "stale" else "head lost"
        return [(f"▲ {word} {fmt.age(link.age_s)}", ink.warn if link.kind == "stale" else ink.bad)]


class PhaseStrip(Painted):
    """`place › register › … MEASURE 07:42/20:00`, then how far both minimums are and when the attempt can end."""

    def __init__(self, store: FleetStore, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._store = store

    def draw(self, width: int, height: int) -> list[Strip]:
        store, ink = self._store, self.inks
        link = store.link()
        if not store.phase:
            why = link.detail or "waiting for the head's first answer"
            return [strip_of([(" " + why, ink.muted)], width)]
        left = self._way() if width >= 100 else [(f" {store.phase}", ink.bold)]
        if not link.trusted and link.detail:
            return [strip_of([*left, ("   " + link.detail, ink.warn)], width)]
        return [strip_of(spread(left, self._progress(width), width), width)]

    def _way(self) -> list[Run]:
        ink, phase = self.inks, self._store.phase
        way = _WAY if phase in _WAY else (*_WAY[:-1], phase)
        at = way.index(phase) if phase in RUN_PHASES else -1
        runs: list[Run] = [(" ", ink.plain)]
        for step, name in enumerate(way):
            if step:
                runs.append((" › ", ink.rule))
            if step == at:
                style = ink.bad + ink.bold if phase in ("FAILED", "ABORTED") else ink.primary + ink.bold
                runs.append((name, style + ink.bold))
            else:
                runs.append((_SHORT.get(name, name.lower()), ink.muted if step < at else ink.faint))
        return runs

    def _progress(self, width: int) -> list[Run]:
        store, ink, snap = self._store, self.inks, self._store.snapshot
        if snap is None or snap.phase not in ("MEASURING", "DRAINING"):
            return []
        if snap.duration_s <= 0:
            return [(f"{fmt.clock(snap.elapsed_s)} elapsed, no end set ", ink.muted)]
        progress = store.progress()
        room = 12 if width >= 110 else 8
        runs: list[Run] = [(f"{fmt.clock(snap.elapsed_s)}", ink.plain), (f"/{fmt.clock(snap.duration_s)} ", ink.muted)]
        if not math.isnan(progress.duration):
            runs += [(fmt.bar(progress.duration, room), ink.primary), (f" {progress.duration * 100:.0f}%", ink.muted)]
        if not math.isnan(progress.queries):
            runs += [("  queries ", ink.muted), (f"{progress.queries * 100:.0f}%", ink.plain)]
        if not math.isnan(progress.eta_s):
            runs += [("  ETA ", ink.muted), (fmt.clock(progress.eta_s), ink.plain)]
        return [*runs, (" ", ink.plain)]


class VerdictBanner(Painted):
    """Shown once the attempt has a verdict: the word, the acts that touched it, and the reasons."""

    def __init__(self, store: FleetStore, *, id: str | None = None) -> None:
        super().__init__(2, id=id)
        self._store = store

    @property
    def wanted(self) -> bool:
        attempt = self._store.attempt
        return bool(attempt and attempt.verdict and (self._store.ended or attempt.state == "ENDED"))

    def draw(self, width: int, height: int) -> list[Strip]:
        attempt, ink = self._store.attempt, self.inks
        if attempt is None:
            return []
        style = {"VALID": ink.good, "EXPLORATION": ink.primary, "SUPERSEDED": ink.muted}.get(attempt.verdict, ink.bad)
        glyph = {"VALID": "●", "EXPLORATION": "◇", "SUPERSEDED": "»"}.get(attempt.verdict, "×")
        runs: list[Run] = [(f" {glyph} {attempt.verdict}", style + ink.bold)]
        if attempt.acts:
            runs.append((f"  ACTS {attempt.acts}", ink.warn))
        runs.append((f"  attempt {attempt.number}, {attempt.kind} at {fmt.rate(attempt.target_qps)} qps", ink.muted))
        if self._store.synthetic:
            runs.append(("  synthetic: says nothing about hardware", ink.warn))
        reasons = "; ".join(attempt.reasons) or ("no reason given" if attempt.verdict != "VALID" else "all limits hold")
        record: list[Run] = [(f"{self._store.record} ", ink.faint)] if self._store.record and width >= 150 else []
        notes = f"   ({'; '.join(attempt.notes)})" if attempt.notes else ""
        why = textwrap.wrap(reasons + notes, max(10, width - 4), max_lines=REASON_LINES, placeholder=" …")
        self.set_lines(1 + len(why))
        return [strip_of(spread(runs, record, width), width), *(strip_of([("   " + line, ink.plain)], width) for line in why)]
