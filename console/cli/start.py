"""Commands that start a run, or open the console on one."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from console.cli.errors import OK, BadInput, exit_code_of
from console.cli.output import note, plural, say, say_json, typed
from harness.records.layout import RunFolder

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
ReadOnly = Annotated[bool, Parameter(negative="", help="Watch with the viewer's key; acts are refused")]
Name = Annotated[str | None, Parameter(help="Name of the run; its folder is NAME-date-time")]


def demo(
    *,
    explore: Annotated[
        bool, Parameter(negative="", help="An exploration without end, whose rate can be changed at once")
    ] = False,
    no_console: NoConsole = False,
    json: AsJson = False,
    overrides: Overrides = [],  # noqa: B006 - cyclopts reads it, nobody writes it
) -> int:
    """Run the demo: 8 nodes x 8 synthetic replicas with a planted straggler, LoadGen Server for two minutes."""
    endless = ["load.kind=explore", "load.duration_s=0"] if explore else []
    return _run("demo", [*endless, *overrides], no_console=no_console, as_json=json, ask_on_quit=True)


def run(
    spec: Annotated[str, Parameter(help="Profile (see `paceline profiles`) or TOML file")],
    /,
    *,
    overrides: Overrides = [],  # noqa: B006
    no_console: NoConsole = False,
    json: AsJson = False,
    name: Name = None,
    read_only: ReadOnly = False,
) -> int:
    """Start a run and open the console on it. The run goes on when the console is left."""
    named = [f'name="{name}"'] if name is not None else []
    return _run(spec, [*overrides, *named], no_console=no_console, as_json=json, read_only=read_only)


def attach(run: str | None = None, /, *, read_only: ReadOnly = False) -> int:
    """Open the console on a run that is going on."""
    from console.cli.found import live_run

    folder = live_run(run)
    _need_terminal("attach", typed(f"status {folder.name}"))
    return _open_console(folder, read_only=read_only)


def restart_head(run: str, /, *, no_console: NoConsole = False, json: AsJson = False, read_only: ReadOnly = False) -> int:
    """Start a new head on a run whose head has died: warm replicas register again, the record goes on."""
    from console.cli.found import any_run
    from console.cli.launch import start_head
    from harness.cluster.local import head_alive

    folder = any_run(run)
    if head_alive(folder):
        raise BadInput(f"{folder.name} has a head; `{typed(f'attach {folder.name}')}` opens it")
    if not (no_console or json):
        _need_terminal("restart-head", typed(f"restart-head {folder.name} --no-console"))
    start_head(folder)
    note(f"{folder.name}: new head; record {folder.path}")
    return _watch(folder, no_console=no_console, as_json=json, read_only=read_only)


def _run(
    which: str, overrides: list[str], *, no_console: bool, as_json: bool, read_only: bool = False, ask_on_quit: bool = False
) -> int:
    if not (no_console or as_json):
        _need_terminal("the console", "--no-console")
    from harness.specfile import load_spec

    spec = load_spec(which, overrides)
    from console.cli.launch import check_dataset, new_run

    check_dataset(spec)
    folder = new_run(spec)
    fleet = f"{plural(spec.fleet.nodes, 'node')} x {plural(spec.fleet.replicas_per_node, 'replica')} of {spec.fleet.engine}"
    note(f"{folder.name}: {fleet}; record {folder.path}")
    return _watch(folder, no_console=no_console, as_json=as_json, read_only=read_only, ask_on_quit=ask_on_quit)


def _watch(folder: RunFolder, *, no_console: bool, as_json: bool, read_only: bool = False, ask_on_quit: bool = False) -> int:
    if not (no_console or as_json):
        return _open_console(folder, read_only=read_only, ask_on_quit=ask_on_quit)
    from console.cli.follow import follow

    killed = not follow(folder)
    return _finish(folder, as_json, killed)


def _finish(folder: RunFolder, as_json: bool, killed: bool = False) -> int:
    from console.cli.report import result_of, say_result

    result = result_of(folder, killed=killed)
    if as_json:
        say_json(result)
    else:
        say_result(result)
    return exit_code_of(result["verdict"], result["phase"])


def _open_console(folder: RunFolder, *, read_only: bool = False, ask_on_quit: bool = False) -> int:
    from console.app import PacelineApp
    from harness.cluster.local import head_alive

    role: Literal["viewer", "operator"] = "viewer" if read_only else "operator"
    left = PacelineApp(folder.path, role=role, read_only=read_only, ask_on_quit=ask_on_quit).run()
    if left == "stop" and head_alive(folder):
        from console.cli.follow import stop_and_follow

        stop_and_follow(folder, "stopped on leaving the console")
    if head_alive(folder):
        attach, stop = typed(f"attach {folder.name}"), typed(f"stop {folder.name}")
        say(f"{folder.name} goes on. `{attach}` opens it again, `{stop}` ends it.")
        return OK
    return _finish(folder, as_json=False)


def _need_terminal(what: str, instead: str) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput(f"{what} needs a terminal, and this is none: use `{instead}`")
