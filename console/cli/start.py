"""Commands that start a run, or open the console on one."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from console.cli.errors import CRASHED, OK, BadInput, exit_code_of
from console.cli.output import note, plural, say, say_json, typed
from harness.records.layout import RunFolder

if TYPE_CHECKING:
    from console.config import Config
    from harness.spec import RunSpec

Overrides = Annotated[
    list[str],
    Parameter(
        name=["--set", "-s"], negative="", help="Override a field, again and again: -s fleet.nodes=4 -s load.target_qps=90"
    ),
]
NoConsole = Annotated[bool, Parameter(negative="", help="Progress lines on stderr instead of the console; ends with the run")]
AsJson = Annotated[
    bool, Parameter(name="--json", negative="", help="One JSON object on stdout at the end (implies --no-console)")
]
WithPrometheus = Annotated[
    bool,
    Parameter(negative="", help="Start a Prometheus that scrapes the GPUs' exporters for this run (metrics.gpu.with_prometheus)"),
]
ReadOnly = Annotated[bool, Parameter(negative="", help="Watch with the viewer's key; acts are refused")]
Name = Annotated[str | None, Parameter(help="Name of the run; its folder is NAME-date-time")]


@Parameter(name="*")
@dataclass(frozen=True)
class Look:
    """How the console is to look, before what the user's console.toml says."""

    theme: Annotated[str | None, Parameter(help="Theme of the console, by name; T goes round them")] = None
    fps: Annotated[Literal[1, 2, 4] | None, Parameter(help="Pictures a second: 1, 2 or 4 (less for a slow line)")] = None


AS_CONFIGURED = Look()


def demo(
    *,
    engine: Annotated[
        Literal["synthetic", "vllm-cpu"],
        Parameter(
            help="vllm-cpu: 2 real vLLM replicas of a tiny model of random weights on this CPU, for one minute (synthetic)"
        ),
    ] = "synthetic",
    explore: Annotated[
        bool, Parameter(negative="", help="An exploration without end, whose rate can be changed at once")
    ] = False,
    with_prometheus: WithPrometheus = False,
    no_console: NoConsole = False,
    json: AsJson = False,
    overrides: Overrides = [],  # noqa: B006 - cyclopts reads it, nobody writes it
    look: Look = AS_CONFIGURED,
) -> int:
    """Run the demo: 8 nodes x 8 synthetic replicas with a planted straggler, LoadGen Server for two minutes."""
    endless = ["load.kind=explore", "load.duration_s=0"] if explore else []
    profile = "demo"
    if engine == "vllm-cpu":
        from console.cli.real_demo import PROFILE, vllm_overrides

        if not (no_console or json):
            _need_terminal("the console", "--no-console")
        profile, endless = PROFILE, [*vllm_overrides(overrides), *endless]
    wished = [*endless, *_prometheus(with_prometheus), *overrides]
    return _run(profile, wished, no_console=no_console, as_json=json, ask_on_quit=True, look=look)


def run(
    spec: Annotated[str, Parameter(help="Profile (see `paceline profiles`) or TOML file")],
    /,
    *,
    overrides: Overrides = [],  # noqa: B006
    with_prometheus: WithPrometheus = False,
    no_console: NoConsole = False,
    json: AsJson = False,
    name: Name = None,
    read_only: ReadOnly = False,
    look: Look = AS_CONFIGURED,
) -> int:
    """Start a run and open the console on it. The run goes on when the console is left."""
    named = [f'name="{name}"'] if name is not None else []
    wished = [*_prometheus(with_prometheus), *overrides, *named]
    return _run(spec, wished, no_console=no_console, as_json=json, read_only=read_only, look=look)


def _prometheus(wanted: bool) -> list[str]:
    return ["metrics.gpu.with_prometheus=true"] if wanted else []


def attach(
    run: str | None = None,
    /,
    *,
    read_only: ReadOnly = False,
    look: Look = AS_CONFIGURED,
    once: Annotated[bool, Parameter(negative="", help="Print one screen as text and leave")] = False,
    json: Annotated[bool, Parameter(name="--json", negative="", help="Print one screen as a JSON object and leave")] = False,
    follow: Annotated[
        bool, Parameter(negative="", help="With --json: an object a second, one a line, until the run ends")
    ] = False,
    plain: Annotated[
        bool, Parameter(negative="", help="A sentence for each event until the run ends; for screen readers and logs")
    ] = False,
    every: Annotated[float | None, Parameter(help="With --plain: seconds between two status sentences (30)")] = None,
    screen: Annotated[
        Literal["live", "fleet", "nodes", "sla", "events", "replica"] | None,
        Parameter(help="Which screen --once and --json print (live)"),
    ] = None,
    slot: Annotated[str, Parameter(help="Of --screen replica: which one, as in node003/gpu1")] = "",
    filter: Annotated[str, Parameter(help="Of --screen fleet: which rows, as after / in the console")] = "",
    sort: Annotated[str, Parameter(help="Of --screen fleet: in which order, as after :sort in the console")] = "",
    namespace: Annotated[str | None, Parameter(help="Of a Kubernetes cluster: look for the run there (paceline)")] = None,
    context: Annotated[
        str | None, Parameter(help="Of the kubeconfig: look for the run on that cluster (its current one)")
    ] = None,
    list_runs: Annotated[
        bool, Parameter(name="--list", negative="", help="List the runs on the cluster instead; with --json as a list")
    ] = False,
) -> int:
    """Open the console on a run: one that is going on, live; one that has ended, by its record. Or, without a screen, print or
    follow it. A run that is not known here is looked for on the Kubernetes cluster of the kubeconfig."""
    if list_runs:
        if run is not None or once or follow or plain or every is not None or screen is not None:
            raise BadInput("attach: --list goes with --json, --namespace and --context only")
        from console.cli.remote import say_remote_runs

        return say_remote_runs(namespace, context, as_json=json)
    asked = [name for name, given in (("--screen", screen), ("--slot", slot), ("--filter", filter), ("--sort", sort)) if given]
    _check_twin(once=once, json=json, follow=follow, plain=plain, every=every, asked=asked)
    if not (once or json or plain):
        from console.cli.found import ended_run
        from console.cli.remote import folder_or_remote

        ended = ended_run(run) if run is not None and namespace is None and context is None else None
        if ended is not None:
            _need_terminal("attach", typed(f"show {ended.name}"))
            return open_launch(ended, read_only=read_only, config=_config(look))
        folder, role = folder_or_remote(run, namespace, context)
        _need_terminal("attach", typed(f"attach {folder.name} --plain"))
        return _open_console(folder, read_only=read_only or role == "viewer", config=_config(look))
    from console.cli import twins
    from console.cli.found import newest_run

    wanted = twins.Wanted(screen or "live", slot, filter, sort)
    wanted.check()
    if namespace is not None or context is not None:
        from console.cli.remote import folder_or_remote

        folder, _ = folder_or_remote(run, namespace, context)
    else:
        folder = newest_run(run)
    if plain:
        return twins.follow_plain(folder, every if every is not None else twins.STATUS_EVERY_S)
    return twins.follow_json(folder, wanted) if follow else twins.once(folder, wanted, as_json=json)


def _check_twin(*, once: bool, json: bool, follow: bool, plain: bool, every: float | None, asked: list[str]) -> None:
    if plain and (once or json or follow):
        raise BadInput("attach: --plain follows in sentences; --once, --json and --follow print screens: use one or the other")
    if follow and not json:
        raise BadInput("attach: --follow goes with --json (an object a second); --plain follows in sentences")
    if follow and once:
        raise BadInput("attach: --once prints one screen, --follow one a second: use one or the other")
    if every is not None and not plain:
        raise BadInput("attach: --every is the time between the status sentences of --plain")
    if every is not None and not 0 < every <= 86_400:
        raise BadInput(f"attach: --every {every:g} must be more than 0 and at most 86400 seconds")
    if asked and (plain or not (once or json)):
        raise BadInput(f"attach: {asked[0]} goes with --once or --json")


def restart_head(run: str, /, *, no_console: NoConsole = False, json: AsJson = False, read_only: ReadOnly = False) -> int:
    """Start a new head on a run whose head has died: warm replicas register again, the record goes on."""
    from console.cli.found import any_run
    from console.starting import start_head
    from harness.cluster.local import head_alive, placed_on

    folder = any_run(run)
    remote = placed_on(folder) == "kubernetes"
    if head_alive(folder) and not remote:
        raise BadInput(f"{folder.name} has a head; `{typed(f'attach {folder.name}')}` opens it")
    if not (no_console or json):
        _need_terminal("restart-head", typed(f"restart-head {folder.name} --no-console"))
    if remote:
        from console.cli.remote import new_remote_head

        new_remote_head(folder)
    if not head_alive(folder):
        start_head(folder)
    note(f"{folder.name}: new head; record {folder.path}")
    return _watch(folder, no_console=no_console, as_json=json, read_only=read_only)


def _run(
    which: str,
    overrides: list[str],
    *,
    no_console: bool,
    as_json: bool,
    look: Look,
    read_only: bool = False,
    ask_on_quit: bool = False,
) -> int:
    config = None
    if not (no_console or as_json):
        _need_terminal("the console", "--no-console")
        config = _config(look)
    from harness.specfile import load_spec

    spec = load_spec(which, overrides)
    from console.cli.launch import check_dataset
    from console.starting import new_run

    if spec.cluster.kind == "kubernetes":  # its engine and its dataset are in the pods
        from console.cli.remote import check_cluster

        check_cluster(spec)
    else:
        _check_engine(spec)
        _check_prometheus(spec)
    check_dataset(spec)
    folder = new_run(spec, note)
    fleet = f"{plural(spec.fleet.nodes, 'node')} x {plural(spec.fleet.replicas_per_node, 'replica')} of {spec.fleet.engine}"
    note(f"{folder.name}: {fleet}{split_in_words(spec)}; record {folder.path}")
    return _watch(folder, no_console=no_console, as_json=as_json, read_only=read_only, ask_on_quit=ask_on_quit, config=config)


def split_in_words(spec: RunSpec) -> str:
    """`, 5 prefill and 4 decode`: how many of each the pattern of fleet.roles comes to on this fleet."""
    fleet = spec.fleet
    if not fleet.split:
        return ""
    there = [fleet.role_at(node, gpu) for node in range(fleet.nodes) for gpu in range(fleet.replicas_per_node)]
    return f", {there.count('prefill'):,d} prefill and {there.count('decode'):,d} decode"


def _check_engine(spec: RunSpec) -> None:
    """Told here it takes a second; told by replicas that cannot start, a barrier waits for them first."""
    if spec.fleet.engine == "synthetic" and spec.fleet.python is None:
        return
    from harness import doctor

    check = doctor.engine(spec.fleet.engine, spec.fleet.python)
    if check.ok is False:
        raise BadInput(f"fleet.engine: {check.detail}" + (f"; {check.fix}" if check.fix else ""))


def _check_prometheus(spec: RunSpec) -> None:
    """A head that lacks it goes on without GPU metrics; who asks for it here should know before."""
    if not spec.metrics.gpu.with_prometheus:
        return
    from harness.metrics.gpu.base import SourceError
    from harness.metrics.gpu.child import find_prometheus
    from harness.metrics.gpu.choose import why_none

    try:
        find_prometheus()
    except SourceError as error:
        raise BadInput(str(error)) from error
    if why := why_none(spec):
        raise BadInput(why)


def _watch(
    folder: RunFolder,
    *,
    no_console: bool,
    as_json: bool,
    read_only: bool = False,
    ask_on_quit: bool = False,
    config: Config | None = None,
) -> int:
    if not (no_console or as_json):
        config = config if config is not None else _config(AS_CONFIGURED)
        return _open_console(folder, read_only=read_only, ask_on_quit=ask_on_quit, config=config)
    from console.cli.follow import follow

    killed = not follow(folder)
    code = _finish(folder, as_json, killed)
    if not killed:
        from console.cli.remote import wait_for_clean_up

        wait_for_clean_up(folder)
    return code


def _finish(folder: RunFolder, as_json: bool, killed: bool = False) -> int:
    from console.cli.report import result_of, say_result

    result = result_of(folder, killed=killed)
    if as_json:
        say_json(result)
    else:
        say_result(result)
    return exit_code_of(result["verdict"], result["phase"])


def _config(look: Look) -> Config:
    """The user's settings and what was asked for on the command line; before a run is started for them."""
    from console.config import BadWish, console_config

    try:
        return console_config(look.theme, look.fps)
    except BadWish as wish:
        raise BadInput(str(wish)) from wish


def _open_console(folder: RunFolder, *, config: Config, read_only: bool = False, ask_on_quit: bool = False) -> int:
    from console.app import PacelineApp
    from harness.cluster.local import head_alive

    role: Literal["viewer", "operator"] = "viewer" if read_only else "operator"
    app = PacelineApp(folder.path, role=role, read_only=read_only, ask_on_quit=ask_on_quit, config=config)
    left = app.run()
    if left == "stop" and head_alive(folder):
        from console.cli.follow import stop_and_follow

        stop_and_follow(folder, "stopped on leaving the console")
    if head_alive(folder):
        _say_it_goes_on(folder)
        return CRASHED if app.return_code else OK
    return CRASHED if app.return_code else _finish(folder, as_json=False)


def open_launch(ended: RunFolder | None = None, *, read_only: bool = False, config: Config | None = None) -> int:
    """The console without a run that goes on: it begins where one is chosen, or on the record of one that has ended. What is
    started or opened there goes on when it is left."""
    from console.app import PacelineApp
    from harness.cluster.local import head_alive

    app = PacelineApp(ended.path if ended is not None else None, read_only=read_only, config=config or _config(AS_CONFIGURED))
    app.run()
    path = app.session.path
    if path is not None and head_alive(RunFolder(path)):
        _say_it_goes_on(RunFolder(path))
    return CRASHED if app.return_code else OK


def _say_it_goes_on(folder: RunFolder) -> None:
    attach, stop = typed(f"attach {folder.name}"), typed(f"stop {folder.name}")
    say(f"{folder.name} goes on. To open it again, and to end it:\n  {attach}\n  {stop}")


def _need_terminal(what: str, instead: str) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput(f"{what} needs a terminal, and this is none: use `{instead}`")
    if os.environ.get("TERM") == "dumb":
        raise BadInput(f"{what} needs a terminal that can move its cursor, and TERM=dumb cannot: use `{instead}`")
