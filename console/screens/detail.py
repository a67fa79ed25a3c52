"""One replica: what it is, how it goes beside its fleet, what it holds, and what happened to it. Follows the slot through
its incarnations.

Everything stands in one page that scrolls, from 100 columns on in two columns: a small terminal shows less at once, never
less. What snapshots do not carry (samples in flight, the log) is asked for every second while this is on show.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll

from console.actions import BY_ID, Where, bindings, footer_of
from console.screens.base import PaintedScreen, Tables
from console.screens.describe import describe
from console.store import tables
from console.store.causes import likely_cause, reason_of
from console.store.columns import LIVE_STATES
from console.store.compare import Difference, compared, differences, told
from console.store.fleet import FleetStore
from console.store.tail import LogTail
from console.widgets import fmt
from console.widgets.band import Band, BandChart, band_of
from console.widgets.chart import BrailleChart
from console.widgets.clock import EVERYTHING, Due
from console.widgets.footer import KeyFooter
from console.widgets.gpu_figures import written
from console.widgets.gpus import GpuPane
from console.widgets.header import HeaderLine
from console.widgets.logview import LogPane
from console.widgets.paint import GLYPHS, Painted
from console.widgets.pod_cells import pod_facts
from console.widgets.replica import PATH, DifferencesPane, Fact, FactsPane, InFlightPane, SlotEvents
from harness.metrics.gpu.roles import ROLES, Role
from harness.wire.control import SlotInfo
from harness.wire.inquiry import GetReplica, ReplicaDetail

ASK_EVERY_S: Final = 1.0
LOG_LINES: Final = 200
LOG_LINES_WHOLE_PANE: Final = 1000
GPU_CHARTS: Final = 2
CHARTED: Final = ("power", "clock", "gpu_util", "junction_temp")  # the first of these that the source has


class ReplicaScreen(PaintedScreen):
    BINDINGS = bindings("replica")
    WHERE: ClassVar[Where] = "replica"

    def __init__(self, store: FleetStore, slot: str, crumb: str = "Live") -> None:
        super().__init__()
        self._store, self.slot, self._crumb = store, slot, crumb
        self.tail = LogTail()
        self.detail: ReplicaDetail | None = None
        self._heard_s = math.nan
        self._unanswered = False
        self._compared: tuple[tuple[object, ...], tuple[list[Difference], int]] = ((), ([], 0))

    def compose(self) -> ComposeResult:
        store, slot = self._store, self.slot
        yield HeaderLine(store, f"{self._crumb} ▸ {slot}", looks_only=self.console_app.looks_only, id="header")
        with VerticalScroll(id="replica"):
            with Horizontal(id="replica-tier"):
                with Vertical(id="replica-left"):
                    yield FactsPane("Now", self._now_facts, id="now-facts")
                    yield GpuPane(store, slot, id="gpus")
                    yield DifferencesPane(self._differences, id="differences")
                    yield InFlightPane(self._in_flight, self._ttft_limit_ms, id="in-flight")
                with Vertical(id="replica-right"):
                    yield FactsPane("Pod", self._pod_facts, id="pod-facts")
                    yield self._chart("tok/s", "tokens_s", fmt.big, "tokens-chart")
                    yield self._chart("step time", "step_ms", _short_ms, "step-chart")
                    yield self._chart("waiting", "waiting", fmt.big, "waiting-chart")
                    for number in range(GPU_CHARTS):
                        yield self._gpu_chart(number)
            yield SlotEvents(store, slot, id="slot-events")
            yield LogPane(self.tail, self._why_no_log, self._log_name, id="replica-log")
            yield FactsPane("What it is", self._own_facts, id="own-facts")
        yield KeyFooter([BY_ID["back"], *footer_of("replica")], self.console_app.why_not, id="footer")

    def on_mount(self) -> None:
        self.query_one("#replica").focus()
        self.every(ASK_EVERY_S, self._ask, "replica detail")
        self.paint(EVERYTHING)

    # --- what is asked for ---------------------------------------------------------------------------------

    async def _ask(self) -> None:
        lines = LOG_LINES_WHOLE_PANE if self.has_class("-log") else LOG_LINES
        answer = await self.console_app.inquire(GetReplica(uuid.uuid4().hex, self.slot, lines))
        if isinstance(answer, ReplicaDetail):
            self.detail, self._heard_s = answer, self.console_app.now_s()
            self.tail.take(answer)
        self._unanswered = answer is None

    def _why_silent(self) -> str:
        if self.detail is not None:
            return ""
        if self._store.ended:
            return "the run has ended: its head is not there to ask"
        if self.console_app.session.kind == "replay":
            return "not in a replay"
        return "the head does not answer" if self._unanswered else "asking the head …"

    def _log_name(self, path: str) -> str:
        """`node001-0.log, shared by 4 replicas`: whose lines these are."""
        sharing = sum(1 for info in self._store.slots if info.log and info.log == path)
        name = fmt.middle(path.rpartition("/")[2], 32)
        return f"{name}, shared by {sharing} replicas" if sharing > 1 else name

    def _why_no_log(self) -> str:
        return self._why_silent() or (self.detail.problem if self.detail is not None else "")

    def _in_flight(self) -> tuple[ReplicaDetail | None, float, str]:
        detail = self.detail
        if detail is None:
            return None, math.nan, self._why_silent()
        age_s = self.console_app.now_s() - self._heard_s
        return detail, age_s + (0.0 if math.isnan(detail.in_flight_age_s) else detail.in_flight_age_s), ""

    def _ttft_limit_ms(self) -> float:
        limits = self._store.spec.limits if self._store.spec is not None else None
        return limits.ttft_p99_ms if limits is not None and limits.ttft_p99_ms is not None else math.inf

    # --- what is shown -------------------------------------------------------------------------------------

    def _now_facts(self) -> list[Fact]:
        store = self._store
        at = store.index.get(self.slot)
        if at is None:
            return [("state", "no longer part of the fleet", "LOST")]
        name = store.state_name(at)

        live, info = name in LIVE_STATES, store.slots[at]

        def value(column: str) -> float:
            """Of one that does not serve nothing is measured: what is there is of its past."""
            return float(store.floats(column)[at]) if live or column == "beat_age_s" else math.nan

        tokens, median = value("tokens_s"), store.median("tokens_s")
        share = "" if math.isnan(tokens) or not median else f"  ({fmt.signed_percent(tokens / median - 1)} against the median)"
        ratio, z = value("ratio"), value("z")
        against = (
            "" if math.isnan(ratio) else f", {ratio:.2f}x the fleet's curve" + ("" if math.isnan(z) else f" (z {fmt.signed(z)})")
        )
        window = f"last {tables.window_s(store):.0f} s"
        if info.incarnations > 1 and float(store.floats("state_age_s")[at]) < tables.window_s(store) and live:
            window += ", partly of the life before this one"
        no_tokens = store.split and info.role == "prefill"
        elsewhere = "counted at decode, where samples end"
        beat = fmt.UNKNOWN if math.isnan(value("beat_age_s")) else f"{fmt.age(value('beat_age_s'))} ago"
        cause = likely_cause(store, at) if name == "SLOW" else ""
        facts = [
            ("state", f"{GLYPHS.get(name, '')} {name} for {fmt.age(store.age_s(at))}  {reason_of(store, at)}", name),
            ("tok/s", "gives none: it fills KV caches" if no_tokens else fmt.count(tokens) + share, ""),
            ("step time", fmt.millis(value("step_ms")) + against, ""),
            ("TTFT p99", elsewhere if no_tokens else f"{fmt.millis(value('ttft_p99_ms'))}  {window}", ""),
            ("TPOT p99", elsewhere if no_tokens else f"{fmt.millis(value('tpot_p99_ms'))}  {window}", ""),
            ("in flight", self._held(at), ""),
            ("engine", f"{fmt.count(store.ints('running')[at])} running, {fmt.count(store.ints('waiting')[at])} waiting", ""),
            ("batch", f"{fmt.big(value('batch'))}, KV cache {fmt.percent(value('kv_use'))}", ""),
            ("heartbeat", f"{beat}, {fmt.plural(int(store.ints('restarts')[at]), 'restart')}", ""),
        ]
        if store.split:
            facts.insert(1, ("role", role_fact(info), ""))
        return [*facts[:1], ("likely cause", cause, ""), *facts[1:]] if cause else facts

    def _held(self, at: int) -> str:
        """By the heartbeat: the list of samples is asked for at another moment."""
        store = self._store
        held, oldest_s = int(store.ints("outstanding")[at]), float(store.floats("oldest_s")[at])
        oldest = f", oldest {fmt.age(oldest_s)}" if held and not math.isnan(oldest_s) else ""
        return f"{fmt.count(held)}{oldest} (by the heartbeat)"

    def _pod_facts(self) -> list[Fact]:
        at = self._store.index.get(self.slot)
        return pod_facts(self._store, self._store.slots[at].node) if at is not None else []

    def _own_facts(self) -> list[Fact]:
        at = self._store.index.get(self.slot)
        if at is None:
            return []
        info = self._store.slots[at]
        arguments = [f"{key.removeprefix('arg.')} {told(value)}" for key, value in info.facts.items() if key.startswith("arg.")]
        others = [f"{key} {told(value)}" for key, value in info.facts.items() if not key.startswith("arg.")]
        facts = [
            ("slot", f"{info.slot}, role {info.role}", ""),
            ("incarnation", f"{info.incarnation[:16]}  (life {info.incarnations})" if info.incarnation else "", ""),
            ("engine", info.engine + (" (synthetic)" if info.synthetic and info.engine != "synthetic" else ""), ""),
            ("versions", _listed(f"{name} {version}" for name, version in info.versions.items()), ""),
            ("accelerator", _listed(f"{key} {value}" for key, value in info.accelerator.items()), ""),
            ("arguments", _listed([info.args_hash, *arguments]), ""),
            ("facts", _listed(others), ""),
            ("process", f"{info.pid} on {info.host}" if info.pid else "", ""),
            ("worker", info.worker, ""),
            ("pod", " on ".join(filter(None, (info.pod, info.node_name))), ""),
            ("log", info.log, PATH),
        ]
        return [fact for fact in facts if fact[1] or fact[0] not in ("pod", "facts")]

    def _differences(self) -> tuple[list[Difference], int]:
        """Looked for again only when the roster has changed."""
        store, at = self._store, self._store.index.get(self.slot)
        if at is None:
            return [], 0
        key = (store.head_epoch, store.roster_version, len(store.slots), store.slots[at].incarnation)
        if key != self._compared[0]:
            self._compared = (key, (differences(store.slots, at), compared(store.slots, at)))
        return self._compared[1]

    def _chart(self, title: str, column: str, label: Callable[[float], str], id: str) -> BandChart:
        return BandChart(lambda: title, lambda: self._band(column), label, fellows=self._fellows, id=id)

    def _gpu_chart(self, number: int) -> BandChart:
        """Of the roles that the source has: what a GPU was given, then what it made of it."""

        def role() -> Role | None:
            known = [ROLES[name] for name in CHARTED if name in self._store.gpus.rounds]
            return known[number] if number < len(known) else None

        def band() -> Band | None:
            at, shown = self._store.index.get(self.slot), role()
            rounds = self._store.gpus.rounds.get(shown.name) if shown is not None else None
            return band_of(rounds, at) if rounds is not None and at is not None else None

        def title() -> str:
            shown = role()
            return shown.title if shown is not None else "GPU"

        def label(value: float) -> str:
            shown = role()
            return written(value, shown).replace(" ", "") if shown is not None else fmt.big(value)

        chart = BandChart(title, band, label, id=f"gpu-chart-{number}")
        chart.add_class("gpu-chart")
        return chart

    def _fellows(self) -> str:
        at = self._store.index.get(self.slot)
        return self._store.slots[at].role if self._store.split and at is not None else "fleet"

    def _band(self, column: str) -> Band | None:
        at = self._store.index.get(self.slot)
        if at is None:
            return None
        role = self._store.slots[at].role
        return band_of(self._store.histories[column], at, self._store.role_mask(role) if self._store.split else None)

    def paint(self, due: Due) -> int:
        self.set_class(not self._store.link().trusted, "-stale")
        self.set_class(self._store.cluster.view is not None, "-cluster")
        self.set_class(self._store.gpus.there, "-gpus")
        lines = 0
        for painted in self.query(Painted):
            if not painted.region.height:
                continue
            if painted.unpainted or (due.charts if isinstance(painted, BrailleChart) else due.numbers):
                lines += painted.repaint()
        return lines

    def tables(self) -> Tables:
        found = tables.replica(self._store, self.slot, self.detail)
        rows = [
            {"fact": each.name, "own": each.own, "majority": each.majority, "agree": each.agree, "compared": each.of}
            for each in self._differences()[0]
        ]
        return {**found, "differences": rows} if found else {}

    # --- keys ----------------------------------------------------------------------------------------------

    def action_log(self) -> None:
        """The whole page for the log, and back."""
        whole = not self.has_class("-log")
        self.set_class(whole, "-log")
        self.tail.pager.follow = True
        self.tail.pager.resize(len(self.tail.lines))
        self.query_one("#replica-log" if whole else "#replica").focus()
        if whole:
            self.every(ASK_EVERY_S, self._ask, "replica detail")  # at once: more lines than before
        self.call_after_refresh(self.paint, EVERYTHING)

    def action_describe(self) -> None:
        if (found := describe(self.console_app, self.slot)) is not None:
            self.app.push_screen(found)

    def action_back(self) -> None:
        if self.has_class("-log"):
            self.action_log()
        else:
            self.dismiss(None)

    def action_copy(self) -> None:
        self.console_app.copy_log_path(self.slot)

    def targets(self) -> list[str]:
        return [self.slot]


def _listed(parts: Iterable[str]) -> str:
    return " · ".join(part for part in parts if part)


def _short_ms(value_ms: float) -> str:
    if value_ms == 0:
        return "0"
    return f"{value_ms / 1000:.1f}s" if value_ms >= 1000 else f"{value_ms:.0f}ms" if value_ms >= 10 else f"{value_ms:.1f}ms"


def role_fact(info: SlotInfo) -> str:
    """`decode: kv_transfer_ms 2, kv_transfer_us_per_token 0.74`: how KV caches come to it, or go from it."""
    transfer = [
        f"{key.removeprefix('arg.')} {told(value)}" for key, value in info.facts.items() if key.startswith("arg.kv_transfer")
    ]
    return f"{info.role}: {', '.join(transfer)}" if transfer else info.role
