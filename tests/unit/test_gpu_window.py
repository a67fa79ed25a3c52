"""The history of roles: growth with restarts, means and extremes over a window, and NaN for what is not known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.metrics.gpu.window import MOST_COLUMNS, RoleHistory

NAN = float("nan")


def column(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def test_a_role_that_never_came_is_none() -> None:
    history = RoleHistory()
    history.push(0, {"power": column(1)})
    assert history.last("energy") is None
    assert history.delta("energy", 60) is None
    assert history.mean("energy", 60) is None
    assert history.max("energy", 60) is None
    assert history.span_s("energy") == 0


def test_growth_counts_a_fall_as_a_restart_and_skips_gaps() -> None:
    history = RoleHistory()
    for unix, values in enumerate([(1, 5, 7, NAN), (3, 9, NAN, NAN), (6, 2, NAN, NAN), (6, 3, 9, 4)]):
        history.push(10 * unix, {"ecc": column(*values)})
    np.testing.assert_equal(history.delta("ecc", 60), [5, 4 + 2 + 1, 2, NAN])
    np.testing.assert_equal(history.delta("ecc", 10), [0, 1, NAN, NAN])
    assert history.span_s("ecc") == 30


def test_mean_and_largest_of_a_window() -> None:
    history = RoleHistory()
    for unix, values in ((0, (100, 1)), (50, (1, NAN)), (60, (3, NAN))):
        history.push(unix, {"util": column(*values)})
    np.testing.assert_equal(history.mean("util", 20), [2, NAN])
    np.testing.assert_equal(history.max("util", 20), [3, NAN])
    np.testing.assert_equal(history.max("util", 60), [100, 1])


def test_a_role_that_stopped_coming_grows_old() -> None:
    history = RoleHistory()
    history.push(0, {"util": column(5), "ecc": column(1)})
    history.push(90, {"util": column(7)})
    np.testing.assert_equal(history.mean("ecc", 60), [NAN])
    np.testing.assert_equal(history.last("ecc"), [1])


def test_only_some_minutes_and_columns_are_kept() -> None:
    history = RoleHistory(keep_s=100)
    for unix in range(0, 1000, 10):
        history.push(unix, {"util": column(unix)})
    assert history.span_s("util") == 100
    for unix in range(2000, 2000 + 2 * MOST_COLUMNS):
        history.push(unix / 1000, {"fast": column(unix)})
    assert history.span_s("fast") <= MOST_COLUMNS


def test_a_fleet_of_another_size_begins_anew() -> None:
    history = RoleHistory()
    history.push(0, {"util": column(1)})
    history.push(10, {"util": column(1, 2)})
    np.testing.assert_equal(history.mean("util", 60), [1, 2])
    np.testing.assert_equal(history.delta("util", 60), [NAN, NAN])


def test_what_is_pushed_may_be_changed_afterwards() -> None:
    history, values = RoleHistory(), column(1)
    history.push(0, {"util": values})
    values[0] = 9
    np.testing.assert_equal(history.last("util"), [1])
