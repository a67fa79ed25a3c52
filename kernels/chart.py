"""The report as a picture: floors of a layer by number of tokens, one line an accelerator, and what was measured as points."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kernels.errors import KernelInputError
from kernels.report import Block
from kernels.roofline import floor
from kernels.shapes import MoeShape
from kernels.store.jsonfiles import write_together

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES: Final = (".svg", ".png", ".pdf")
#: Told apart in grey too: by the line and by the point.
_STYLES: Final = (
    ("#0072b2", "-", "o"), ("#d55e00", "--", "s"), ("#009e73", "-.", "^"), ("#cc79a7", ":", "D"), ("#555555", (0, (5, 1)), "v"),
)  # fmt: skip
_MOST_PANELS: Final = 12


def check_target(path: Path) -> None:
    """Before anything is computed."""
    if path.suffix.lower() not in SUFFIXES:
        raise KernelInputError(f"chart {path}: must end in {', '.join(SUFFIXES)}")
    try:
        there, folder = path.parent.is_dir(), path.is_dir()
    except OSError as error:
        raise KernelInputError(f"chart {path}: cannot be written: {error.strerror}; name another file") from None
    if not there:
        raise KernelInputError(f"chart {path}: {path.parent} is no folder; make it, or name another")
    if folder:
        raise KernelInputError(f"chart {path}: is a folder; name a file")


def draw(blocks: Sequence[Block], path: Path) -> None:
    """A panel for each layer; written aside and then renamed."""
    check_target(path)
    shapes = list(dict.fromkeys(block.shape for block in blocks))
    if len(shapes) > _MOST_PANELS:
        raise KernelInputError(
            f"chart {path}: {len(shapes)} layers are more than the {_MOST_PANELS} that fit; name some with --model"
        )
    import matplotlib
    from matplotlib.figure import Figure

    columns = 1 if len(shapes) == 1 else 2 if len(shapes) <= 4 else 3
    lines = -(-len(shapes) // columns)
    with matplotlib.rc_context({"svg.hashsalt": "paceline", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}):
        figure = Figure(figsize=(7.2, 4.8) if columns == 1 else (4.6 * columns, 3.7 * lines), layout="constrained")
        panels = figure.subplots(lines, columns, squeeze=False).flat
        for axes, shape in zip(panels, shapes, strict=False):
            _panel(axes, shape, [block for block in blocks if block.shape == shape])
        for spare in list(panels):
            spare.remove()
        picture = _picture(figure, path.suffix.lower()[1:])
    write_together({path: picture})


def _panel(axes: Axes, shape: MoeShape, blocks: Sequence[Block]) -> None:
    from matplotlib.ticker import LogLocator

    for number, block in enumerate(blocks):
        colour, line, marker = _STYLES[number % len(_STYLES)]
        tokens = [row.m for row in block.rows]
        sheet = f"{block.on.name}, {block.on.bandwidth_tb_s:g} TB/s"
        every = _between(tokens[0], tokens[-1])
        floors = [floor(shape, m, block.on).us for m in every]
        alone = "_" if len(every) == 1 else ""  # one point makes no line
        axes.plot(every, floors, color=colour, linestyle=line, marker=alone, markersize=16, label=f"floor {sheet}")
        points = [(row.m, row.measured_us) for row in block.rows if row.measured_us is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, linestyle="", marker=marker, label=f"measured {block.on.name}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ms = sorted({row.m for block in blocks for row in block.rows})
    few = ms if len(ms) <= 11 else [ms[round(place * (len(ms) - 1) / 7)] for place in range(8)]
    axes.set_xticks(few, [str(m) for m in few])
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("tokens (M)")
    axes.set_ylabel("µs a layer")
    of_all = f" of {shape.routed_over}" if shape.routed_over != shape.experts else ""
    sizes = f"H {shape.hidden}, I {shape.intermediate}, {shape.weights}"
    none = "" if any(row.measured_us is not None for block in blocks for row in block.rows) else "; floors only, nothing measured"
    axes.set_title(f"{shape.model}: {shape.experts}{of_all} experts, top {shape.top_k}\n{sizes}{none}", fontsize=9)
    axes.legend(fontsize=7.5)


def _between(first: int, last: int) -> list[int]:
    """Close enough for a line to be the floor also between the numbers of tokens that were asked for."""
    return sorted({round(first * (last / first) ** (place / 128)) for place in range(129)})


def _picture(figure: Figure, kind: str) -> bytes:
    """The same bytes for the same figure."""
    written = io.BytesIO()
    without_date: dict[str, Any] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[kind]
    figure.savefig(written, format=kind, dpi=150, metadata=without_date)
    return written.getvalue()
