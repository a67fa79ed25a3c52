"""A target rate on its way: in a straight line from the present rate to the one asked for, while samples are issued.

Its time counts only in steps that the caller vouches for, so a pause, or a load that has not begun, holds it where it is.
"""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_S = 3600.0


@dataclass(slots=True)
class Ramp:
    from_qps: float
    to_qps: float
    over_s: float
    who: str
    gone_s: float = 0.0

    @property
    def rate_qps(self) -> float:
        share = min(1.0, self.gone_s / self.over_s)
        return self.from_qps + (self.to_qps - self.from_qps) * share if share < 1 else self.to_qps

    @property
    def left_s(self) -> float:
        return max(0.0, self.over_s - self.gone_s)
