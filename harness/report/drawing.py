"""matplotlib, kept in one place: its settings, its two backends, and what its SVG needs before it can stand in a page.

Nothing of its state outlives a drawing, and nothing of the person's own settings gets in; the same figure gives the same bytes.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from harness.report.document import Chart, visible
from harness.report.palette import LIGHT, MARKS, Palette, to_plain, to_variables

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE_IN: Final = 8.4
_DPI: Final = 200  # of PNG: 1,680 points wide
_SETTINGS: Final[dict[str, Any]] = {
    "font.size": 9, "axes.titlesize": 9.5, "axes.titlelocation": "left", "axes.titleweight": "bold", "axes.labelsize": 8.5,
    "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8, "legend.frameon": False, "legend.borderaxespad": 0.2,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8, "lines.linewidth": 1.4,
    "xtick.major.size": 3, "ytick.major.size": 3, "axes.grid": True, "grid.linewidth": 0.6, "axes.axisbelow": True,
    "svg.fonttype": "none", "svg.hashsalt": "paceline", "text.parse_math": False, "axes.unicode_minus": True,
    "figure.constrained_layout.use": True, "path.simplify": True, "axes.formatter.useoffset": False,
}  # fmt: skip


@contextlib.contextmanager
def matplotlib_as_ours(palette: Palette) -> Iterator[None]:
    import matplotlib

    _quiet_about_fonts()
    colours = {
        "text.color": palette.ink, "axes.labelcolor": palette.muted, "axes.edgecolor": palette.muted,
        "axes.titlecolor": palette.ink, "xtick.color": palette.muted, "ytick.color": palette.muted, "grid.color": palette.grid,
        "figure.facecolor": palette.paper, "axes.facecolor": palette.paper, "legend.labelcolor": palette.ink,
    }  # fmt: skip
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name in letters that its font lacks is drawn by the reader's font
        matplotlib.rcdefaults()
        settings: dict[Any, Any] = _SETTINGS | colours
        matplotlib.rcParams.update(settings)
        yield


def _quiet_about_fonts() -> None:
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # on its first day it tells on stderr that it caches


def new_figure(height_in: float, *shape: int, **options: Any) -> tuple[Figure, Any]:
    """The figure and its axes, as `Figure.subplots` gives them (always as an array)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDE_IN, height_in))
    return figure, figure.subplots(*shape, squeeze=False, **options)


def only_grid(axes: Axes, axis: str) -> None:
    axes.grid(visible=False)
    axes.grid(visible=True, axis=axis)  # type: ignore[arg-type]


def page_svg(chart: Chart) -> str:
    """An <svg> element for a page: colours as CSS variables, text as text, ids that no other chart of the page has."""
    with matplotlib_as_ours(MARKS):
        text = _saved(chart.draw(MARKS), "svg", transparent=True).decode()
    return to_variables(_compact(text, chart))


def file_svg(chart: Chart, footer: str) -> str:
    with matplotlib_as_ours(MARKS):
        text = _saved(_standing_alone(chart, footer, MARKS), "svg").decode()
    start = text.index("<svg")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + to_plain(_fonts(text[start:], "sans-serif"))


def file_png(chart: Chart, footer: str) -> bytes:
    with matplotlib_as_ours(LIGHT):
        return _saved(_standing_alone(chart, footer, LIGHT), "png", dpi=_DPI)


def _standing_alone(chart: Chart, footer: str, palette: Palette) -> Figure:
    """With its title and where it comes from: a picture in a slide has no page around it."""
    figure = chart.draw(palette)
    figure.suptitle(visible(chart.title), x=0.01, ha="left", fontsize=11, fontweight="bold")
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.55)
    figure.supxlabel(visible(footer), x=0.01, ha="left", fontsize=7.5, color=palette.muted)
    return figure


def _saved(figure: Figure, form: str, **options: Any) -> bytes:
    out = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
    figure.savefig(out, format=form, metadata=metadata, **options)
    return out.getvalue()


_IDS = re.compile(r'\sid="([^"]*)"')
_REFERENCES = re.compile(r'(?:xlink:href="#([^"]+)"|url\(#([^)]+)\))')
_DIGITS = re.compile(r"(\d\.\d\d)\d+")


def _compact(text: str, chart: Chart) -> str:
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->\s*|<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    wanted = {one or other for one, other in _REFERENCES.findall(text)}
    text = _IDS.sub(lambda found: f' id="{chart.name}-{found[1]}"' if found[1] in wanted else "", text)
    text = _REFERENCES.sub(
        lambda found: f'href="#{chart.name}-{found[1]}"' if found[1] else f"url(#{chart.name}-{found[2]})", text
    )
    text = re.sub(r"<defs>\s*<style[^>]*>(.*?)</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r"<[^>]*>", lambda tag: _DIGITS.sub(r"\1", tag[0]), text)  # of coordinates, not of what is written
    text = _fonts(text, "var(--font)")
    text = re.sub(r"\s*\n\s*", "\n", text)
    box = re.search(r'viewBox="([^"]*)"', text)
    opening = f'<svg viewBox="{box[1] if box else "0 0 600 300"}" role="img" aria-labelledby="{chart.name}-alt" class="chart">'
    return re.sub(r"<svg[^>]*>", lambda _: opening + f'\n<title id="{chart.name}-alt">{_xml(chart.alt)}</title>', text, count=1)


def _fonts(text: str, family: str) -> str:
    return re.sub(r"('DejaVu Sans'|&apos;DejaVu Sans&apos;)[^;\"]*", family, text)


def _xml(text: str) -> str:
    return visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
