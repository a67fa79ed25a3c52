"""`paceline kernels`: floors of MoE layers beside what was measured, and the tables of tuned configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Group, Parameter

from console.cli import tuning
from console.cli.errors import NOT_VALID, OK, BadInput
from console.cli.output import note, number, plural, say, say_json, table, typed
from console.cli.waiting import told_if_slow

if TYPE_CHECKING:
    from kernels.accelerators import Accelerator
    from kernels.report import BenchTime, Block, Row
    from kernels.shapes import MoeShape
    from kernels.store import About, Table, VllmTable

AsJson = Annotated[bool, Parameter(name="--json", negative="", help="One JSON object")]
_ON = "MI355X,MI300X,H200"
_MODEL = "gpt-oss-120b"


def kernels_app(group: Group) -> App:
    app = App(
        name="kernels",
        help="MoE kernels with MXFP4 weights: floors of their layers, and the tables of tuned configurations.",
        group=group,
        default_parameter=Parameter(show_default=False),
        version_flags=[],
    )
    for command in (report, show, check, tuning.tune):
        app.command(command)
    return app


def report(
    *,
    model: Annotated[str, Parameter(help="Models, with commas, or all (gpt-oss-120b)")] = _MODEL,
    on: Annotated[str, Parameter(help="Accelerators or compiler targets (MI355X,MI300X,H200)")] = _ON,
    m: Annotated[str | None, Parameter(help="Numbers of tokens (1,2,4,…,512)")] = None,
    tp: Annotated[int, Parameter(help="A rank's part of the intermediate size: 1/TP (1)")] = 1,
    ep: Annotated[int, Parameter(help="A rank's part of the experts: 1/EP; M stays that of all ranks (1)")] = 1,
    store: Annotated[Path | None, Parameter(help="Folder of tables ($PACELINE_KERNEL_STORE, or where tune writes)")] = None,
    bandwidth: Annotated[Path | None, Parameter(help="TOML of accelerators: other figures, or others")] = None,
    measured: Annotated[list[Path] | None, Parameter(negative="", help="JSON that tests/bench/gpu_moe.py wrote")] = None,
    chart: Annotated[Path | None, Parameter(help="Draw it into a file: .svg, .png or .pdf")] = None,
    json: AsJson = False,
    csv: Annotated[bool, Parameter(name="--csv", negative="", help="A line for each accelerator and number of tokens")] = False,
) -> int:
    """The floor of MoE layers in µs: bytes of the experts that M tokens touch over bandwidth; beside it what was measured.

    Routing is uniform and only weights of touched experts count. A time stands here only where it was measured at exactly that
    M on that class of node; nothing is predicted. Configurations are those that this package's kernel takes: tuned (measured at
    this M), nearest (at another M), untimed (chosen offline by compiler and roofline) or default (no table), each with its tile:
    M x N x K / warps / stages of the gate/up GEMM, then of the down GEMM where that has another. For weights that are not MXFP4
    there are only tables of vLLM's own kernel (vllm), or none (-).
    """
    from kernels.report import report as make_report

    if json and csv:
        raise BadInput("kernels report: --json or --csv, not both")
    ms, shapes = _tokens(m), [shape.split(tp=tp, ep=ep) if (tp, ep) != (1, 1) else shape for shape in _shapes(model)]
    accelerators, roots = _accelerators(on, bandwidth), _roots(store)
    times = _measured(measured or [])
    if chart is not None:
        from kernels.chart import check_target

        check_target(chart)
    blocks = make_report(shapes, ms, accelerators, roots, times)
    for remark in dict.fromkeys(block.note for block in blocks if block.note):
        note(f"store: {remark}")
    if chart is not None:
        from kernels.chart import draw

        with told_if_slow(f"drawing {chart}"):
            draw(blocks, chart)
        note(f"{chart}: written")
    _say_report(blocks, tp, ep, as_json=json, as_csv=csv)
    return OK


def show(
    *,
    store: Annotated[Path | None, Parameter(help="Folder of tables ($PACELINE_KERNEL_STORE, or where tune writes)")] = None,
    on: Annotated[str | None, Parameter(help="Of these accelerators or compiler targets only")] = None,
    model: Annotated[str | None, Parameter(help="Of this model only")] = None,
    json: AsJson = False,
) -> int:
    """Which tables of tuned configurations there are: class of node, layer, numbers of tokens, origin, fraction of the floor."""
    from kernels.store.checking import check as check_tables

    is_on = _is_on(on)
    layers = {shape.model for shape in _shapes(model)} if model is not None else None
    roots = _roots(store)
    found = check_tables(root for root in roots if root.is_dir())
    rows = [*map(_listed, found.tables), *map(_listed, found.vllm)]
    rows = [row for row in rows if is_on(row) and (layers is None or row["model"] in layers)]
    damaged = [problem.text for problem in found.problems if not problem.text.endswith(": has no table")]
    if json:
        say_json({"roots": [str(root) for root in roots], "tables": rows, "problems": damaged})
        return OK
    if not rows:
        wanted = (f" of {model}" if model is not None else "") + (f" for {on}" if on is not None else "")
        say(f"no table{wanted} in {', '.join(map(str, roots))}; `{typed('kernels tune --help')}` says how one is made")
    for place in dict.fromkeys(row["folder"] for row in rows):
        _say_tables(place, [row for row in rows if row["folder"] == place])
    if damaged:
        note(f"{plural(len(damaged), 'problem')} with these tables: `{typed('kernels check FOLDER')}` tells each")
    return OK


def check(
    *paths: Annotated[Path, Parameter(help="Tables, or folders of them (the store and the shipped ones)")],
    json: AsJson = False,
) -> int:
    """Say what is wrong with tables: fields, values, names, class, sidecar, kernel; exit code 1 if anything."""
    from kernels.store.checking import check as check_tables

    chosen = [path.expanduser() for path in paths] or [root for root in _roots(None) if root.is_dir()]
    found = check_tables(chosen)
    count = len(found.tables) + len(found.vllm)
    if json:
        problems = [{"path": str(problem.path), "problem": problem.text} for problem in found.problems]
        say_json({"paths": [str(path) for path in chosen], "tables": count, "problems": problems})
    else:
        for problem in found.problems:
            say(problem.text)
        say(f"{plural(count, 'table')} read, " + (plural(len(found.problems), "problem") if found.problems else "nothing wrong"))
    return NOT_VALID if found.problems else OK


# --- what was typed ------------------------------------------------------------------------------------------


def _words(text: str, option: str) -> list[str]:
    words = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words:
        raise BadInput(f"kernels: {option} is empty; leave it out, or name at least one")
    return words


def _tokens(text: str | None) -> tuple[int, ...]:
    from kernels.report import MS
    from kernels.store.about import MAX_M

    if text is None:
        return MS
    words = _words(text, "--m")
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) <= 7 and 1 <= int(word) <= MAX_M):
            raise BadInput(f"kernels: --m {word} must be a number of tokens, 1 to {MAX_M:,d}, or several with commas")
    return tuple(sorted({int(word) for word in words}))


def _shapes(text: str) -> list[MoeShape]:
    from kernels.shapes import model, models

    words = _words(text, "--model")
    named = [model(word) for word in words if word != "all"]  # each is looked up, all or not
    return list(models().values()) if "all" in words else list(dict.fromkeys(named))


def _accelerators(text: str, bandwidth: Path | None) -> list[Accelerator]:
    from kernels.accelerators import accelerator, accelerators
    from kernels.datasheets import read_accelerators

    known = accelerators() if bandwidth is None else read_accelerators(bandwidth.expanduser(), accelerators())
    if bandwidth is not None and text == _ON:
        text += "".join(f",{name}" for name in known if name not in accelerators())
    return list(dict.fromkeys(accelerator(word, known) for word in _words(text, "--on")))


def _is_on(text: str | None) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a table is of a compiler target or an accelerator that was named; of an accelerator its name says it."""
    from kernels.accelerators import TARGETS

    if text is None:
        return lambda _row: True
    targets: set[str] = set()
    devices: set[str] = set()
    for word in _words(text, "--on"):
        (named,) = _accelerators(word, None)
        if word.lower() in (*TARGETS, *(target.replace("_", "") for target in TARGETS)):
            targets.add(named.target)
        else:
            devices.update(named.device_names)
    return lambda row: row["target"] in targets or row["device_name"] in devices


def _roots(store: Path | None) -> tuple[Path, ...]:
    """The shipped tables come last."""
    from kernels.store.lookup import SHIPPED, checked_root, store_roots

    if store is not None:
        return checked_root(store.expanduser(), "--store"), SHIPPED
    roots = store_roots()
    own = tuning.own_store()
    return (own, *roots) if len(roots) == 1 and own.is_dir() else roots


def _measured(paths: Iterable[Path]) -> list[BenchTime]:
    from kernels.bench_file import read_bench

    return [one for path in paths for one in read_bench(path.expanduser())]


# --- what is said --------------------------------------------------------------------------------------------


def _say_report(blocks: Sequence[Block], tp: int, ep: int, *, as_json: bool, as_csv: bool) -> None:
    rows = [row.json() | {"tp": tp, "ep": ep} for block in blocks for row in block.rows]
    if as_json:
        accelerators = {block.on.name: _sheet(block.on) for block in blocks}
        say_json({"accelerators": accelerators, "rows": rows, "notes": [block.note for block in blocks if block.note]})
    elif as_csv:
        from console.cli.view_words import say_csv

        say_csv(rows)
    else:
        for number_, block in enumerate(blocks):
            _say_block(block, tp, ep, first=number_ == 0)
        if not any(row.measured_us for block in blocks for row in block.rows):
            say(f"\nnot measured: no time of these is known here; `{typed('kernels tune')}` on a node measures")


def _sheet(on: Accelerator) -> dict[str, Any]:
    return {"target": on.target, "bandwidth_tb_s": on.bandwidth_tb_s, "bf16_tflops": on.bf16_tflops}


def _say_block(block: Block, tp: int, ep: int, *, first: bool) -> None:
    shape, on = block.shape, block.on
    ranks = "".join(f" {name}{value}" for name, value in (("TP", tp), ("EP", ep)) if value > 1)
    say(("" if first else "\n") + f"{shape.model}{ranks} on {on.name} ({on.target}, {on.bandwidth_tb_s:g} TB/s)")
    of_all = f" of {shape.routed_over}" if shape.routed_over != shape.experts else ""
    say(f"{shape.experts}{of_all} experts, top {shape.top_k}, H {shape.hidden}, I {shape.intermediate}, {shape.weights}")
    timed = any(row.measured_us is not None for row in block.rows)
    headings = ["M", "experts", "MB read", "floor µs", "bound"] + (["measured µs", "of floor"] if timed else []) + ["config"]
    rows = [_cells(row, timed) for row in block.rows]
    say(table(headings, rows, right=(0, 1, 2, 3, *((5, 6) if timed else ()))))


def _cells(row: Row, timed: bool) -> list[str]:
    digits = 0 if row.floor_us >= 100 else 1
    cells = [str(row.m), f"{row.active_experts:.1f}", number(row.weight_mb, 0), number(row.floor_us, digits)]
    cells.append("bytes" if row.bound == "bytes" else "ops")
    if timed:
        us = row.measured_us
        cells += ["not measured", "-"] if us is None else [number(us, 1), f"{(row.of_floor or 0):.0%}"]
    config = f"{row.config}{f' (M {row.key})' if row.key not in (None, row.m) else ''} {row.tile}".strip()
    return [*cells, config or "-"]


def _listed(one: Table | VllmTable) -> dict[str, Any]:
    from kernels.identity import kernel_hash
    from kernels.store import Table

    about, name = one.about, one.name
    assert name is not None
    ours = isinstance(one, Table)
    folder, reached = one.path.parent, _reached(about)
    return {
        "folder": str(folder),
        "node_class": about.node_class.slug if about is not None else folder.name,
        "target": about.target if about is not None else folder.name.partition("-")[0],
        "device_name": name.device_name,
        "file": one.path.name,
        "hash": one.hash,
        "model": about.model if about is not None else "",
        "experts": name.experts,
        "intermediate": name.intermediate,
        "dtype": name.dtype,
        "keys": list(one.configs),
        "origin": about.origin if about is not None else "",
        "kernel_hash": about.kernel_hash if about is not None else "",
        "kernel": ("ours" if about and about.kernel_hash == kernel_hash() else "other") if ours else "vLLM's",
        "triton": about.triton if about is not None else "",
        "date": about.date if about is not None else "",
        "of_floor": {"best": max(reached), "worst": min(reached)} if reached else None,
    }


def _reached(about: About | None) -> list[float]:
    return [facts.of_floor for facts in about.keys.values() if facts.of_floor is not None] if about is not None else []


def _say_tables(folder: str, rows: Sequence[dict[str, Any]]) -> None:
    say(folder)
    cells = []
    for row in rows:
        keys, reached = row["keys"], row["of_floor"]
        ms = str(keys[0]) if len(keys) == 1 else f"{keys[0]}-{keys[-1]} ({len(keys)})"
        fraction = f"{reached['worst']:.0%}-{reached['best']:.0%}" if reached else "-"
        layer = f"{row['model'] or '?'} E={row['experts']} N={row['intermediate']}"
        cells.append([layer, row["dtype"], ms, row["origin"] or "-", row["kernel"], row["date"][:10] or "-", fraction])
    say(table(["  layer", "weights", "M", "origin", "kernel", "date", "of floor"], [["  " + one[0], *one[1:]] for one in cells]))
