"""Writes dashboard.json beside it: the Grafana dashboard of a run. `make dashboards` calls it; a test holds the file to it.

The builders are grafana-foundation-sdk's, a dependency of development alone. Expressions name only what our profiles and our
own pages have. Panels of GPUs ask AMD's exporter and NVIDIA's, of which a cluster has one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, prometheus, statetimeline, statushistory, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models.dashboard import (
    Dashboard,
    DashboardCursorSync,
    DataSourceRef,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    VariableHide,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

FILE = Path(__file__).with_name("dashboard.json")
UID = "paceline-run"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
RUN, NODE = 'run=~"$run"', 'hostname=~"$node"'
NODES = "node, vm_name, hostname, Hostname"
Query = tuple[str, str]  # expression, legend
_Panel = timeseries.Panel | statushistory.Panel | statetimeline.Panel

_CAPPED = f"delta(${{prefix}}gpu_violation_ppt_residency_accumulated{{{NODE}}}[2m])"
_LOOKS = f"(delta(${{prefix}}gpu_violation_current_accumulated_counter{{{NODE}}}[2m]) > 0)"
_HEAT = [
    f"delta(${{prefix}}gpu_violation_{what}_thermal_residency_accumulated{{{NODE}}}[2m])" for what in ("socket", "hbm", "vr")
]
_SYSTEM = f'{{{NODE}, clock_type="system"}}'
_BY_NODE = "{{hostname}}{{Hostname}}"


def main() -> None:
    FILE.write_text(as_text(build()), encoding="utf-8")


def as_text(made: Dashboard) -> str:
    return json.dumps(json.loads(json.dumps(made, cls=JSONEncoder)), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def build() -> Dashboard:
    board = (
        dashboard.Dashboard("Paceline run")
        .uid(UID)
        .description("A distributed inference benchmark: load and latencies from its head, GPUs from their exporters.")
        .tags(["paceline", "mlperf"])
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .refresh("10s")
        .time("now-30m", "now")
        .timezone("browser")
    )
    for variable in _variables():
        board.with_variable(variable)
    numbers = count(1)
    for row, panels in _ROWS.items():
        board.with_row(dashboard.Row(row).id(next(numbers)))
        for panel in panels:
            board.with_panel(panel.id(next(numbers)))
    return board.build()


def _variables() -> list[dashboard.DatasourceVariable | dashboard.TextBoxVariable | dashboard.QueryVariable]:
    def asked(name: str, label: str, query: str) -> dashboard.QueryVariable:
        return (
            dashboard.QueryVariable(name).label(label).datasource(SOURCE).query(query).refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.ALPHABETICAL_ASC).multi(True).include_all(True).all_value(".*")
            .current(VariableOption(text="All", value="$__all", selected=True))
        )  # fmt: skip

    return [
        dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus").hide(VariableHide.DONT_HIDE),
        asked("run", "run", "label_values(paceline_run_info, run)"),
        asked("node", "node", 'label_values({__name__=~"${prefix}gpu_gfx_activity|DCGM_FI_DEV_GPU_UTIL"}, hostname)'),
        dashboard.TextBoxVariable("prefix").label("prefix of AMD's metrics").default_value(""),
    ]


# --- panels --------------------------------------------------------------------------------------------------


def _target(number: int, query: Query) -> prometheus.Dataquery:
    expr, legend = query
    return prometheus.Dataquery().expr(expr).legend_format(legend).range().ref_id(chr(ord("A") + number)).datasource(SOURCE)


def _lines(
    title: str, unit: str, queries: Sequence[Query], *, told: str = "", low: float | None = 0, limits: str = ""
) -> timeseries.Panel:
    """`limits`: a pattern of legends that are drawn dashed and red."""
    legend = common.VizLegendOptions().display_mode(common_models.LegendDisplayMode.LIST)
    legend.placement(common_models.LegendPlacement.BOTTOM).show_legend(True)
    panel = timeseries.Panel().title(title).description(told).datasource(SOURCE).unit(unit).height(8).span(8).legend(legend)
    panel.line_width(1).fill_opacity(5).show_points(common_models.VisibilityMode.NEVER)
    panel.tooltip(
        common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI).sort(common_models.SortOrder.DESCENDING)
    )
    if low is not None:
        panel.min(low)
    if limits:
        dashed = {"fill": "dash", "dash": [8, 6]}
        red = {"mode": "fixed", "fixedColor": "red"}
        panel.override_by_regexp(
            limits, [DynamicConfigValue(id_val="custom.lineStyle", value=dashed), DynamicConfigValue(id_val="color", value=red)]
        )
    for number, query in enumerate(queries):
        panel.with_target(_target(number, query))
    return panel


def _heat(
    title: str, unit: str, queries: Sequence[Query], *, told: str, good_is_high: bool = False, low: float, high: float
) -> statushistory.Panel:
    """A line of coloured cells for each node."""
    scheme = FieldColorModeId.CONTINUOUS_RD_YL_GR if good_is_high else FieldColorModeId.CONTINUOUS_GR_YL_RD
    panel = statushistory.Panel().title(title).description(told).datasource(SOURCE).unit(unit).height(9).span(12)
    panel.color_scheme(dashboard.FieldColor().mode(scheme)).min(low).max(high).max_data_points(60)
    panel.show_value(common_models.VisibilityMode.NEVER).legend(common.VizLegendOptions().show_legend(False))
    for number, query in enumerate(queries):
        panel.with_target(_target(number, query))
    return panel


def _alerts() -> statetimeline.Panel:
    expr = f'max by (id, severity, {NODES}, gpu_id, gpu, replica) (ALERTS{{alertstate="firing", id!=""}})'
    grades = (
        dashboard.ThresholdsConfig()
        .mode(ThresholdsMode.ABSOLUTE)
        .steps([Threshold(value=None, color="green"), Threshold(value=1, color="red")])
    )
    panel = statetimeline.Panel().title("Alerts that fire").datasource(SOURCE).height(9).span(24)
    panel.description("The rules of manifests/monitoring, as this Prometheus evaluates them.")
    panel.thresholds(grades).legend(common.VizLegendOptions().show_legend(False)).show_value(common_models.VisibilityMode.NEVER)
    return panel.with_target(_target(0, (expr, "{{severity}} {{id}} {{hostname}}{{Hostname}} {{gpu_id}}{{gpu}}{{replica}}")))


def _quantiles(metric: str) -> list[Query]:
    rate = f"sum by (le) (rate(paceline_{metric}_seconds_bucket{{{RUN}}}[$__rate_interval]))"
    lines = [(f"histogram_quantile({q}, {rate})", f"p{100 * q:g}") for q in (0.5, 0.9, 0.99)]
    return [*lines, (f'max(paceline_limit_seconds{{{RUN}, metric="{metric}"}})', "limit of p99")]


def _within(metric: str, upper: str) -> Query:
    bucket = f'sum(rate(paceline_{metric}_seconds_bucket{{{RUN}, le="{upper}"}}[$__rate_interval]))'
    count = f"sum(rate(paceline_{metric}_seconds_count{{{RUN}}}[$__rate_interval]))"
    return f"1 - {bucket} / ({count} > 0)", f"{metric.upper()} over {upper} s"


def _both(amd: str, nvidia: str) -> list[Query]:
    """The same of both exporters; of an AMD exporter's several names the first that is there."""
    return [(amd, _BY_NODE), (nvidia, _BY_NODE)]


def _by_node(how: str, metric: str, *, amd: bool = True) -> str:
    return f"{how} by ({NODES}) ({'${prefix}' if amd else ''}{metric}{{{NODE}}})"


def _grown(metric: str, what: str) -> Query:
    return f"sum by ({NODES}) (increase({metric}{{{NODE}}}[10m])) > 0", f"{what} {_BY_NODE}"


_EACH_POWER = f"${{prefix}}gpu_package_power{{{NODE}}} or ${{prefix}}gpu_power_usage{{{NODE}}}"
_POWER = f"sum by ({NODES}) (max by ({NODES}, gpu_id) ({_EACH_POWER}))"
_ROWS: dict[str, Sequence[_Panel]] = {
    "Load": [
        _lines(
            "Rate",
            "reqps",
            [
                (f"sum(paceline_target_qps{{{RUN}}})", "target"),
                (f"sum(paceline_offered_qps{{{RUN}}})", "offered"),
                (f"sum(paceline_completed_qps{{{RUN}}})", "completed"),
            ],
        ),
        _lines(
            "In flight",
            "short",
            [
                (f"sum(paceline_in_flight{{{RUN}}})", "in flight"),
                (f"sum(paceline_backlog{{{RUN}}})", "backlog in the head"),
                (f"sum(paceline_replica_queue_depth{{{RUN}}})", "waiting in replicas"),
            ],
            told="A backlog that grows: the fleet is past its knee.",
        ),
        _lines("Output tokens", "short", [(f"sum(paceline_output_tokens_per_second{{{RUN}}})", "tokens a second")]),
    ],
    "Latency against the SLA": [
        _lines("TTFT", "s", _quantiles("ttft"), limits="limit.*"),
        _lines("TPOT", "s", _quantiles("tpot"), limits="limit.*"),
        _lines(
            "Share over the limits of MLPerf",
            "percentunit",
            [_within("ttft", "2.0"), _within("ttft", "3.0"), _within("tpot", "0.08")],
            told="Exact: the limits are bounds of the buckets. One percent is what p99 allows.",
        ),
        _lines(
            "Issued late",
            "s",
            [
                (f"max(paceline_scheduler_lag_seconds{{{RUN}}})", "p99"),
                (f"max(paceline_scheduler_lag_median_seconds{{{RUN}}})", "p50"),
            ],
            told="Issued against scheduled. It counts towards TTFT of the Server scenario.",
        ),
        _lines(
            "Failures",
            "short",
            [
                (f"sum(increase(paceline_queries_failed_total{{{RUN}}}[$__rate_interval]))", "failed for good"),
                (f"sum(increase(paceline_queries_redispatched_total{{{RUN}}}[$__rate_interval]))", "dispatched again"),
                (f"sum(increase(paceline_evictions_total{{{RUN}}}[$__rate_interval]))", "evictions"),
                (f"sum(increase(paceline_target_qps_changes_total{{{RUN}}}[$__rate_interval]))", "changes of the rate"),
            ],
        ),
        _lines(
            "CPU of the head",
            "percent",
            [
                (f"max(paceline_head_cpu_percent{{{RUN}}})", "head"),
                (f"max(paceline_driver_cpu_percent{{{RUN}}})", "driver"),
            ],
            told="Percent of a core.",
        ),
    ],
    "Replicas": [
        _lines("Replicas by state", "short", [(f"sum by (state) (paceline_replicas{{{RUN}}})", "{{state}}")]),
        _lines(
            "Step time against the fleet's curve",
            "none",
            [
                (f"topk(10, paceline_replica_step_ratio{{{RUN}}})", "{{replica}}"),
                (f"quantile(0.5, paceline_replica_step_ratio{{{RUN}}})", "fleet median"),
            ],
            told="The ten slowest. 1 is as fast as the fleet at the same batch.",
        ),
        _lines("Oldest beats", "s", [(f"topk(5, paceline_heartbeat_age_seconds{{{RUN}}})", "{{replica}}")]),
    ],
    "GPUs by node": [
        _heat(
            "Busy",
            "percent",
            _both(_by_node("avg", "gpu_gfx_activity"), _by_node("avg", "DCGM_FI_DEV_GPU_UTIL", amd=False)),
            told="Mean of a node's GPUs.",
            good_is_high=True,
            low=0,
            high=100,
        ),
        _heat(
            "Time at the power cap",
            "percentunit",
            _both(
                f"max by ({NODES}) ({_CAPPED} / {_LOOKS})",
                f"max by ({NODES}) (rate(DCGM_FI_DEV_POWER_VIOLATION{{{NODE}}}[2m])) / 1e9",
            ),
            told="The worst GPU of each node. All at the cap is normal, one above the rest is not.",
            low=0,
            high=1,
        ),
        _heat(
            "Time throttled by heat",
            "percentunit",
            [
                *((f"max by ({NODES}) ({heat} / {_LOOKS})", _BY_NODE) for heat in _HEAT),
                (f"max by ({NODES}) (rate(DCGM_FI_DEV_THERMAL_VIOLATION{{{NODE}}}[2m])) / 1e9", _BY_NODE),
            ],
            told="The worst GPU of each node.",
            low=0,
            high=1,
        ),
        _heat(
            "Junction temperature",
            "celsius",
            _both(_by_node("max", "gpu_junction_temperature"), _by_node("max", "DCGM_FI_DEV_GPU_TEMP", amd=False)),
            told="The hottest GPU of each node.",
            low=30,
            high=105,
        ),
        _lines("Power", "watt", _both(_POWER, _by_node("sum", "DCGM_FI_DEV_POWER_USAGE", amd=False))),
        _lines(
            "Clock",
            "percentunit",
            _both(
                f"min by ({NODES}) (${{prefix}}gpu_clock{_SYSTEM} / ${{prefix}}gpu_max_clock{_SYSTEM})",
                f"min by ({NODES}) (DCGM_FI_DEV_SM_CLOCK{{{NODE}}}) / scalar(quantile(0.5, DCGM_FI_DEV_SM_CLOCK{{{NODE}}}))",
            ),
            told="The slowest GPU of each node: of its maximum (AMD), of the fleet's median (NVIDIA).",
        ),
        _lines(
            "Memory errors",
            "short",
            [
                _grown("${prefix}gpu_ecc_uncorrect_total", "uncorrectable"),
                _grown("${prefix}gpu_ecc_correct_total", "corrected"),
                _grown("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "uncorrectable"),
                _grown("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "corrected"),
            ],
            told="Within ten minutes. One uncorrectable error puts a run in doubt.",
        ),
    ],
    "Alerts": [_alerts()],
}


if __name__ == "__main__":
    main()
