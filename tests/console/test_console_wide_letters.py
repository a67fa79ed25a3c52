"""Names of letters that take two cells: columns stay where they are, and no line is wider than its screen."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from rich.style import Style

from console.widgets import fmt
from console.widgets.paint import spread, strip_of

NAMES = ("ラン-漢字の名前-終", "naïve-🚀-run", "漢" * 40, "plain-name-of-a-run", "")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [0, 1, 3, 4, 7, 12, 80])
def test_what_is_cut_fits_its_column_and_what_is_short_is_filled_up(name: str, width: int) -> None:
    for text in (fmt.clip(name, width), fmt.middle(name, width)):
        assert cell_len(text) <= max(1, width)
        assert cell_len(text) == cell_len(name) or cell_len(name) > width
    assert cell_len(fmt.pad(fmt.middle(name, width), width)) == max(width, cell_len(fmt.middle(name, width)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [1, 5, 6, 40])
def test_a_line_is_exactly_as_wide_as_its_screen(name: str, width: int) -> None:
    runs = [(f"a {name}", Style.null()), ("b", Style(bold=True))]
    assert sum(cell_len(segment.text) for segment in strip_of(runs, width)) == width
    assert sum(cell_len(segment.text) for segment in strip_of(spread(runs, [("end", Style.null())], 40), 40)) == 40
