"""Where GPU metrics come from, as facts: what the Metrics screen shows before anything is asked."""

from __future__ import annotations

import math
from typing import Final

from console.store.fleet import FleetStore
from console.store.gpus import COLUMN_OF
from console.widgets import fmt
from console.widgets.replica import Fact

#: How each state of a source is coloured: as a replica in that state.
_LOOKS: Final = {"ok": "READY", "starting": "WARMING", "partial": "SLOW", "stale": "SLOW", "down": "LOST"}
_ENDED: Final = "the run has ended: nobody asks its source any more"


def source_facts(store: FleetStore) -> list[Fact]:
    """State, source, whose GPUs are known and whose are not, roles that are read and those that are not, alerts."""
    gpus, view = store.gpus, store.gpus.view
    if view is None:
        return [("state", _ENDED if store.ended else "the head has not told yet where GPU metrics come from", "")]
    facts: list[Fact] = [("state", f"{view.state}: {view.problem}" if view.problem else view.state, _LOOKS.get(view.state, ""))]
    if view.state == "none":
        return facts
    age_s, resolution_s = gpus.newest_age_s(store.unix), gpus.resolution_s
    every = "" if math.isnan(resolution_s) else f", values change every {resolution_s:.0f} s"
    facts.append(
        ("source", f"{view.source} ({', '.join(view.profiles) or view.kind}), read every {view.interval_s:g} s{every}", "")
    )
    facts.append(("newest value", fmt.UNKNOWN if math.isnan(age_s) else f"{fmt.age(age_s)} old", ""))
    lonely, strangers = view.gpus_unmatched, view.series_unmatched
    facts.append(("GPUs", f"{view.matched:,d} of {view.matched + lonely:,d} of the fleet have series", "SLOW" if lonely else ""))
    if strangers:
        facts.append(("", f"{strangers:,d} of the source's are no replica's", ""))
    facts += [("", text, "SLOW") for text in view.unmatched]
    facts.append(("roles", " ".join(COLUMN_OF[role.name] for role in gpus.roles()) or fmt.UNKNOWN, ""))
    facts += [("missing" if at == 0 else "", f"{COLUMN_OF.get(name, name)}: {why}", "")
              for at, (name, why) in enumerate(view.not_collected.items())]  # fmt: skip
    fires = len(view.alerts)
    facts.append(("alert rules", f"{view.rules:,d}, {'none fires' if not fires else fmt.plural(fires, 'alert') + ' firing'}", ""))
    facts += [("warning", text, "SLOW") for text in view.warnings]
    return facts
