"""The tree of commands, and the one place where an error becomes a paragraph and an exit code."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Sequence

from cyclopts import App, CycloptsError, Group, Parameter, UnusedCliTokensError

from console.cli import (
    acts,
    alerts,
    checks,
    clean_up,
    comparing,
    deleting,
    exporting,
    importing,
    kernels,
    keys,
    labelling,
    listing,
    manifests,
    metrics,
    processes,
    reporting,
    run_list,
    scale,
    scoring,
    serve,
    showing,
    start,
    status,
    themes,
    tiny_model,
)
from console.cli.errors import describe
from console.cli.output import complain, open_streams, typed
from console.cli.version import versions_line

EPILOGUE = """\
RUN is a run's folder, its name, or any part of its name that fits only one; left out, it is the newest that is going on.

Exit codes: 0 VALID, or an exploration that ended as asked; 1 INVALID, SUPERSEDED or ABORTED, or an act that was refused, \
or a run whose head is gone; 2 bad input; 3 a crash, or no answer from the run.

$PACELINE_RUNS is the folder of runs (default ./runs). PACELINE_DEBUG=1 shows where an error came from.
"""


def build() -> App:
    app = App(
        name="paceline",
        help="Operations console for distributed LLM inference benchmarks, and the MLPerf LoadGen harness that it supervises.",
        help_epilogue=EPILOGUE,
        version=versions_line,
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
        default_command=listing.welcome,
        default_parameter=Parameter(show_default=False),
    )
    begin, watch, act, kept, inside = map(Group.create_ordered, ("Start", "Look", "Act", "Keep", "Processes"))
    app["--help"].group = app["--version"].group = Group("Options", sort_key=99)
    look = (
        status.status, run_list.runs, showing.show, metrics.metrics, alerts.alerts, listing.profiles, themes.themes,
        checks.doctor, keys.keys, comparing.compare, comparing.scaling, comparing.definitions,
    )  # fmt: skip
    grouped: list[tuple[Group, Sequence[Callable[..., int]]]] = [
        (
            begin,
            (start.demo, start.run, start.attach, serve.serve, start.restart_head, tiny_model.tiny_model, manifests.manifests),
        ),
        (watch, look),
        (act, (clean_up.clean_up,)),
        (kept, (labelling.tag, labelling.note, labelling.pin, deleting.delete, deleting.prune)),
        (inside, (processes.head, processes.worker)),
    ]
    for group, commands in grouped:
        for command in commands:
            app.command(command, group=group)
    for command in acts.COMMANDS:
        name = command.__name__
        app.command(command, group=act, usage=f"Usage: paceline {name.replace('_', '-')} {acts.USAGE[name]} [OPTIONS]")
    app.command(scale.scale, group=act, usage=f"Usage: paceline scale {scale.USAGE} [OPTIONS]")
    app.command(kernels.kernels_app(watch))
    app.command(importing.import_, name="import", group=kept)
    app.command(scoring.score, group=kept)
    app.command(scoring.verify, group=kept)
    app.command(reporting.report, group=kept)
    app.command(exporting.export_app(kept))
    app.command(exporting.system_app(kept))
    return app


def _not_understood(error: UnusedCliTokensError, given: Sequence[str], commands: Sequence[str]) -> str:
    unused = " ".join(error.unused_tokens or [])
    if given and given[0] not in commands:
        near = difflib.get_close_matches(given[0], commands, n=1)
        return f"there is no command {given[0]!r}" + (
            f"; did you mean {near[0]}?" if near else f" ({typed('--help')} lists them)"
        )
    return f"{given[0]}: {unused} was not understood ({typed(given[0])} --help)"


def main(tokens: Sequence[str] | None = None) -> int:
    """Runs a command; the exit code. Never raises, save with PACELINE_DEBUG=1."""
    debug = os.environ.get("PACELINE_DEBUG", "") not in ("", "0")
    given = list(tokens) if tokens is not None else sys.argv[1:]
    open_streams()
    try:
        app = build()
        result = app(given)
        sys.stdout.flush()
    except UnusedCliTokensError as error:
        complain(_not_understood(error, given, [name for name in app if not name.startswith("-")]))
        return 2
    except CycloptsError as error:
        complain(f"{error} ({typed('--help')} lists the commands)")
        return 2
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    except BrokenPipeError:
        _write_no_more()  # the reader of our output (head, less) has gone: nothing to tell it
        return 0
    except Exception as error:
        if debug:
            raise
        text, code = describe(error)
        complain(text)
        try:
            sys.stdout.flush()
        except OSError:
            _write_no_more()
        return code
    return result if isinstance(result, int) else 0


def _write_no_more() -> None:
    """What stdout did not take must not be tried again by the interpreter on its way out: that has an exit code of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
