"""One replica's line over the fleet's band: shaded from p10 to p90, the median dotted, the replica in braille on top.

Two outer lines would need the eye to pair them; a shade is the fleet at a glance, and a line that leaves it is what one is
looking for. Read without colour: the shade is drawn with a glyph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from textual.strip import Strip

from console.store.rings import History, band_over
from console.widgets.chart import BrailleChart, Line, Picture
from console.widgets.paint import Run, strip_of

_LABEL: Final = 7
SHADE: Final = "░"
FEWEST_S: Final = 60  # an axis is never shorter


@dataclass(frozen=True, slots=True)
class Band:
    unix: NDArray[np.float64]
    own: NDArray[np.float64]
    low: NDArray[np.float64]
    median: NDArray[np.float64]
    high: NDArray[np.float64]


def band_of(history: History, position: int, fellows: NDArray[np.bool_] | None = None) -> Band:
    """Of a replica and its fleet, or of those `fellows` alone; seconds before anything was heard are left away."""
    own = history.values[position].astype(np.float64)
    low, median, high = (history.band if fellows is None else band_over(history.values[fellows])).astype(np.float64)
    known = np.flatnonzero(~np.isnan(own) | ~np.isnan(median))
    first = min(int(known[0]) if len(known) else 0, max(0, len(own) - FEWEST_S))
    return Band(history.unix[first:], own[first:], low[first:], median[first:], high[first:])


class BandChart(BrailleChart):
    def __init__(
        self,
        title: Callable[[], str],
        band: Callable[[], Band | None],
        label: Callable[[float], str],
        *,
        fellows: Callable[[], str] = lambda: "fleet",
        id: str | None = None,
    ) -> None:
        """`fellows`: whose band it is, in a word."""
        super().__init__(title, lambda: Picture(np.zeros(0), []), label, id=id)
        self._band, self._fellows = band, fellows

    def draw(self, width: int, height: int) -> list[Strip]:
        ink, band = self.inks, self._band()
        whose = f"[$chart-offered]this replica[/]  [$ink-muted]{SHADE} {self._fellows()} p10-p90  ⠒ median[/]"
        self.entitle(f"{self._title()} · {whose}")
        rows, columns = height - 1, width - _LABEL
        nothing = band is None or (np.isnan(band.own).all() and np.isnan(band.median).all())
        if band is None or nothing or rows < 1 or columns < 8:
            return [strip_of([(" nothing measured yet", ink.faint)], width)]
        lines = [Line("median", "ink-muted", band.median), Line("own", "chart-offered", band.own)]
        everything = [*lines, Line("low", "", band.low), Line("high", "", band.high)]
        oldest, newest = float(band.unix[0]), float(band.unix[-1])
        low, high = self._range(Picture(band.unix, everything), oldest)
        picture = Picture(band.unix, lines)
        cells, owner = self._raster(picture, oldest, newest, (low, high), (rows, columns))
        shade = self._shade(band, (low, high), (rows, columns))
        styles = [(ink.style(line.ink), ink.on(line.ink, "panel")) for line in lines]
        shaded = ink.on("ink-rule", "panel")
        strips = []
        for row in range(rows):
            runs: list[Run] = [(self._axis_label(row, rows, low, high, -1, None), ink.faint)]
            for column in range(columns):
                inside = bool(shade[row, column])
                if cells[row, column]:
                    runs.append((chr(0x2800 + int(cells[row, column])), styles[int(owner[row, column])][inside]))
                else:
                    runs.append((SHADE, shaded) if inside else (" ", ink.plain))
            strips.append(strip_of(runs, width))
        return [*strips, self._time_axis(picture, oldest, newest, columns, width)]

    @staticmethod
    def _shade(band: Band, bounds: tuple[float, float], size: tuple[int, int]) -> NDArray[np.bool_]:
        """Cells between p10 and p90; at least the one that both lie in."""
        (low, high), (rows, columns) = bounds, size
        known = ~np.isnan(band.low)
        if not known.any():
            return np.zeros(size, dtype=np.bool_)
        grid = np.linspace(float(band.unix[0]), float(band.unix[-1]), columns)
        edges = [np.interp(grid, band.unix[known], line[known], left=np.nan, right=np.nan) for line in (band.high, band.low)]
        top, bottom = ((high - np.nan_to_num(edge, nan=low - high)) / (high - low) * rows for edge in edges)
        at = np.arange(rows)[:, None]
        inside: NDArray[np.bool_] = (at >= np.floor(top)) & (at <= np.floor(bottom)) & ~np.isnan(edges[0])
        return inside
