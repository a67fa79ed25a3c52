"""Everything a key can do, as data. Bindings, footers, palette, `:` commands, help and the README's table come from here.

An Action's `id` is what a key map refers to and the name of the method that runs it (`action_<id>`; with an argument on
the `:` line, `command_<id>`), save for acts: those all go through `action_act`. `acts` marks what changes the run: greyed,
and answered with the reason, when this console may only look; each of them asks before it does anything. `where` are the
screens that have it; "app" is everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from textual.binding import Binding, BindingType

Group = Literal["Screens", "Act", "Look", "Move", "Replay", "Console"]
Where = Literal["app", "launch", "live", "fleet", "replica", "sla", "events", "runs", "metrics", "record", "compare", "scaling"]


@dataclass(frozen=True, slots=True)
class Action:
    id: str
    keys: str  # Textual key names, comma separated
    shown_key: str
    title: str  # palette
    help: str
    group: Group
    where: tuple[Where, ...] = ("app",)
    footer: str = ""  # label in the footer; "" = not there
    acts: bool = False
    takes: str = ""  # what an argument on the `:` line is: SLOT, QPS, EXPRESSION, …; "" = none
    of_pods: bool = False  # means nothing where workers are processes: not in the footer there

    @property
    def short(self) -> str:
        return (self.footer or self.title).split(" ")[0]

    @property
    def run(self) -> str:
        """Textual's name of what a key does: acts all go the same way."""
        return f"act('{self.id}')" if self.acts else self.id

    @property
    def command(self) -> str:
        """Its name on the `:` line."""
        return self.id.removeprefix("mode_").replace("_", "-")


_ROWS: Final[tuple[Where, ...]] = ("live", "fleet")
_ON: Final[tuple[Where, ...]] = ("live", "fleet", "replica")
_REPLAYED: Final[tuple[Where, ...]] = ("live", "fleet", "sla")
_LISTS: Final[tuple[Where, ...]] = ("live", "fleet", "events", "runs", "launch", "metrics", "record", "compare", "scaling")

ACTIONS: Final = (
    Action("mode_launch", "0", "0", "Launch", "choose, check and start a run; attach to one", "Screens"),
    Action("mode_live", "1", "1", "Live", "SLA, load, heat map, stragglers, charts, worst replicas", "Screens"),
    Action("mode_fleet", "2", "2", "Fleet", "every replica or node: filter, sort, mark", "Screens"),
    Action("mode_sla", "3", "3", "SLA", "distributions against the limits, where the tail comes from", "Screens"),
    Action("mode_events", "4", "4", "Events", "journal, alerts and logs by time", "Screens"),
    Action("mode_runs", "5", "5", "Runs", "ended and running runs, their verdicts, replay", "Screens"),
    Action("mode_metrics", "6", "6", "Metrics", "PromQL, asked by the head, as chart and table; every metric by name", "Screens"),
    Action("last_view", "grave_accent", "`", "Last screen", "back to the screen before this one", "Screens"),

    Action("evict", "e", "e", "Evict replica", "take it out; its samples are dispatched again", "Act", _ON, "Evict",
           True, "SLOT"),
    Action("drain", "d", "d", "Drain replica", "no new samples; it finishes what it has", "Act", _ON, "Drain", True, "SLOT"),
    Action("recycle", "r", "r", "Recycle replica", "drain, then restart its engine in place", "Act", _ON, "Recycle",
           True, "SLOT"),
    Action("readmit", "a", "a", "Readmit replica", "take a drained or evicted replica back", "Act", _ON, "", True, "SLOT"),
    Action("waive", "W", "W", "Waive a missing slot", "the barrier no longer waits for it", "Act", _ON, "", True, "SLOT"),
    Action("scale", "N", "N", "Change the number of nodes",
           "asks first; :scale 48; what goes drains first", "Act", ("app",), "", True, "NODES", of_pods=True),
    Action("rate", "equals_sign", "=", "Change target QPS",
           "asks first; :rate 50, +100, -5%; :rate 50 15 ramps for 15 s", "Act", ("app",), "QPS", True, "QPS [RAMP_S]"),
    Action("rate_up", "plus", "+", "Target QPS up a step", "opens the dialog of = a step higher", "Act", ("app",), "", True),
    Action("rate_down", "minus", "-", "Target QPS down a step", "opens the dialog of = a step lower", "Act", ("app",), "", True),
    Action("pause", "p", "p", "Pause or resume issuing", "explore attempts only", "Act", ("live", "fleet"), "", True),
    Action("policy", "P", "P", "Straggler policy", "flag, drain or recycle", "Act", ("app",), "", True, "POLICY"),
    Action("new_attempt", "B", "B", "Begin the next attempt", "on the same warm replicas", "Act", ("app",), "", True),
    Action("abort", "X", "X", "Abort the attempt", "its load ends now; the fleet stays warm", "Act", ("app",), "", True),
    Action("stop_run", "S", "S", "Stop the run", "end the load and the fleet; asks for the run's name", "Act",
           ("app",), "", True),
    Action("arm", "A", "A", "Arm or disarm this console", "disarmed, no key can act", "Act"),
    Action("control", "C", "C", "Take or release control", "one operator at a time holds the run's lease", "Act"),

    Action("start", "G", "G", "Start the run", "after a look at what will be started", "Act", ("launch",), "Start"),
    Action("preflight", "c", "c", "Check again", "everything that must hold before a start", "Look", ("launch",), "Preflight"),
    Action("edit", "i", "i", "Edit the field", "enter does the same on a field; :set fleet.nodes=2 without looking for it",
           "Look", ("launch",), "Edit", False, "FIELD=VALUE"),

    Action("open", "enter", "↵", "Open", "go into what is under the cursor", "Look",
           ("live", "fleet", "events", "runs", "launch", "metrics", "record", "scaling"), "Open"),
    Action("filter", "slash", "/", "Filter rows", "slow  !ready  n033  z>3  ttft>2.5s  kv>90%  a b  a|b", "Look",
           ("live", "fleet", "events", "runs", "launch", "record"), "Filter", False, "EXPRESSION"),
    Action("sort", "o", "o", "Next sort order", "or :sort COLUMN", "Look", ("live", "fleet", "runs", "record"), "Sort", False,
           "COLUMN"),
    Action("reverse", "O", "O", "Reverse the order", "last first; again puts it back", "Look", ("fleet", "runs", "record")),
    Action("freeze", "f", "f", "Freeze the order", "rows stay where they are, numbers go on", "Look", _ROWS, "Freeze"),
    Action("freeze_picture", "F", "F", "Freeze the picture", "nothing on screen moves; the run goes on", "Look"),
    Action("faults", "z", "z", "Faults only", "hide what is ready and not slow", "Look", _ROWS, "Faults"),
    Action("heat", "h", "h", "Next heat metric", "step-time ratio, tok/s, …, GPU metrics; :heat power", "Look", ("live",), "Heat",
           False, "METRIC"),
    Action("charts", "t", "t", "Charts or heat map", "on a narrow terminal, where only one of them has room", "Look", ("live",)),
    Action("nodes", "n", "n", "Nodes or replicas", "one row a node, of its replicas together", "Look", ("fleet",), "Nodes"),
    Action("columns", "c", "c", "Choose columns", ":columns power temp clock; :columns usual", "Look", ("fleet",), "", False,
           "COLUMNS"),
    Action("wide", "w", "w", "Wide columns", "more columns, scrolled with ← →; long lines in Events wrap", "Look",
           ("fleet", "events"), "Wide"),
    Action("mark", "space", "space", "Mark", "acts hit all marked rows", "Look", ("fleet", "runs"), "Mark"),
    Action("mark_range", "ctrl+@,ctrl+space", "^space", "Mark to here", "from the last mark", "Look", ("fleet", "runs")),
    Action("unmark", "u", "u", "Clear the marks", "acts hit the row under the cursor again", "Look", ("fleet", "runs")),
    Action("result", "v", "v", "Result by replica", "from the record, once the run has ended", "Look", ("live",)),
    Action("log", "l", "l", "Log", "the whole pane for the log's end", "Look", ("replica",), "Log"),
    Action("describe", "D", "D", "Describe the pod", "containers, conditions, events, its node", "Look",
           ("fleet", "replica"), "Pod", of_pods=True),
    Action("metric", "m", "m", "TTFT or TPOT", "which latency the tail shares are of", "Look", ("sla", "record", "compare"),
           "Metric"),
    Action("window", "w", "w", "Window", "the last window or the whole attempt", "Look", ("sla",), "Window"),
    Action("by_node", "n", "n", "By node or replica", "whose share of the slowest samples is listed", "Look", ("sla",), "Nodes"),
    Action("query", "slash,i", "/", "Type a query", "PromQL; enter asks, ↑ has earlier ones, esc leaves", "Look",
           ("metrics",), "Query"),
    Action("promql", "Q", "Q", "Ask in PromQL", ":promql QUERY from anywhere; the head asks its source", "Look", ("app",), "",
           False, "QUERY"),
    Action("span", "w", "w", "Span", "now, the last 15 min, the attempt, the whole run", "Look", ("metrics",), "Span"),
    Action("browse", "m", "m", "Every metric", "what the source has, with type and help; enter puts it into the query", "Look",
           ("metrics",), "Metrics"),
    Action("level", "l", "l", "Level", "all, warnings and acts, errors", "Look", ("events",), "Level"),
    Action("sources", "o", "o", "Sources", "journal, logs, both", "Look", ("events",), "Sources"),
    Action("follow", "s", "s", "Follow", "stay at the newest line", "Look", ("events",), "Follow"),
    Action("tag", "t", "t", "Tag runs", "the marked ones, else this one; :tag baseline -old", "Look", ("runs",), "Tag", False,
           "TAGS"),
    Action("note", "n", "n", "Note on a run", ":note TEXT; the filter note:word finds it",
           "Look", ("runs",), "", False, "TEXT"),
    Action("pin", "p", "p", "Pin or unpin", "what is pinned is not deleted", "Look", ("runs",)),
    Action("import", "I", "I", "Import a run", "a record, LoadGen's logs or a run of mlcommons/endpoints; :import PATH", "Look",
           ("runs",), "", False, "PATH"),
    Action("delete", "D", "D", "Delete runs", "the marked ones, else this one; asks for the name", "Look", ("runs",), "Delete"),
    Action("compare", "c", "c", "Compare", "2 to 8 marked runs side by side", "Look", ("runs",), "Compare"),
    Action("baseline", "v", "v", "Next baseline", "the run that the others are compared with", "Look", ("compare",), "Baseline"),
    Action("curves", "t", "t", "CDF or tail", "the share at or below, or the share above in powers of ten", "Look", ("compare",),
           "Tail"),
    Action("scaling", "s", "s", "Scaling", "runs by number of nodes: tokens/s, efficiency, published figures", "Look", ("runs",),
           "Scaling"),
    Action("copy", "y", "y", "Copy", "log path, line or command line, through the terminal (OSC 52) and to a file", "Look",
           ("launch", "live", "fleet", "replica", "events", "runs", "metrics", "record", "compare", "scaling")),

    Action("view_next", "tab", "tab", "Next view", "of a record or a comparison", "Look", ("record", "compare"), "Views"),
    Action("view_before", "shift+tab", "⇤", "View before this one", "shift and tab", "Look", ("record", "compare")),
    Action("view", "V", "V", "View by name", "verdict, timeline, distributions, tail, …; :view tail", "Look", ("record",), "",
           False, "VIEW"),
    Action("view_verdict", "v", "v", "Verdict of the record", "did it pass, by how much, what should change", "Look",
           ("record",)),
    Action("view_timeline", "i", "i", "Timeline", "rates, latencies and replicas over the attempt, with acts and alerts", "Look",
           ("record",)),
    Action("view_distributions", "d", "d", "Distributions", "min … p99.9, max; histogram and CDF with the limit", "Look",
           ("record",)),
    Action("view_tail", "t", "t", "Tail", "whose samples are slow, and in which part", "Look", ("record",)),
    Action("view_fleet", "f", "f", "Fleet of the record", "replicas or nodes with robust z, whole attempt", "Look", ("record",)),
    Action("view_slowest", "s", "s", "Slowest samples", "enter shows one sample's life", "Look", ("record",)),
    Action("view_acts", "a", "a", "Acts and their effect", "windows before and after each, with intervals", "Look", ("record",)),
    Action("view_config", "c", "c", "Config", "settings in which replicas differ", "Look", ("record",)),
    Action("group", "n", "n", "Next grouping", "replica, node, time, prompt length, …; :group node", "Look", ("record",), "Group",
           False, "GROUP"),
    Action("over_limit", "w", "w", "Slowest 1 % or over limit", "which samples are the tail", "Look", ("record",)),
    Action("logs_around", "l", "l", "Logs around the moment", "of the mark, act or sample under the cursor", "Look", ("record",),
           "Logs"),
    Action("definitions", "D", "D", "Definitions", "formula and window of each figure of this view", "Look",
           ("record", "compare", "scaling"), "Formulas"),
    Action("attempt_before", "left_square_bracket", "[", "Attempt before", "of a run with several", "Look", ("record",)),
    Action("attempt_next", "right_square_bracket", "]", "Next attempt", "of a run with several", "Look", ("record",)),
    Action("attempts", "K", "K", "Compare the attempts", "of this run, side by side; the last eight", "Look", ("record",)),

    Action("replay", "R", "R", "Replay", "the run again, from its record, on the live screens", "Replay", ("runs",
           "record"), "Replay"),
    Action("replay_play", "space", "space", "Play or stop", "the clock of the replay", "Replay", ("live", "sla"), "Play"),
    Action("replay_back", "comma", ",", "10 s back", "the screens as they were then", "Replay", _REPLAYED, "-10 s"),
    Action("replay_forward", "full_stop", ".", "10 s on", "10 s of the record further on", "Replay", _REPLAYED, "+10 s"),
    Action("replay_before", "left_square_bracket", "[", "Act or alert before", "or start or end of an attempt", "Replay",
           _REPLAYED),
    Action("replay_next", "right_square_bracket", "]", "Next act or alert", "or start or end of an attempt", "Replay",
           _REPLAYED, "Next act"),
    Action("replay_to", "J", "J", "Jump to a time", ":replay-to 3:20, 200 (s), +30, -1:00, begin, end", "Replay", _REPLAYED,
           "", False, "TIME"),
    Action("replay_speed", "greater_than_sign", ">", "Replay speed", "x1, x4, x16, x60", "Replay", ("live", "fleet", "sla"),
           "Speed", False, "SPEED"),

    Action("up", "up,k", "↑ k", "Up", "one row", "Move", _LISTS),
    Action("down", "down,j", "↓ j", "Down", "one row", "Move", _LISTS),
    Action("page_up", "pageup", "PgUp", "Page up", "one page", "Move", _LISTS),
    Action("page_down", "pagedown", "PgDn", "Page down", "one page", "Move", _LISTS),
    Action("top", "home,g", "g", "First row", "the top of the list", "Move", _LISTS),
    Action("bottom", "end,b", "b", "Last row", "the end of the list", "Move", _LISTS),
    Action("left", "left", "←", "Left", "in wide columns; of a record the view before", "Move",
           ("fleet", "events", "record", "compare")),
    Action("right", "right", "→", "Right", "in wide columns; of a record the next view", "Move",
           ("fleet", "events", "record", "compare")),
    Action("back", "escape", "esc", "Back", "leave what is open, clear the filter, or let go of the row", "Move",
           ("launch", "live", "fleet", "replica", "sla", "events", "runs", "metrics", "record", "compare",
            "scaling")),

    Action("command_line", "colon", ":", "Command line", "every action by name, with completion", "Console", ("app",), "Cmd"),
    Action("help", "question_mark,f1", "?", "Help", "every key of this screen first, then the rest", "Console", ("app",), "Help"),
    Action("command_palette", "ctrl+p", "^p", "Palette", "all actions by name", "Console"),
    Action("next_theme", "T", "T", "Next theme", "goes round; :theme NAME picks one", "Console", ("app",), "", False, "THEME"),
    Action("picture", "ctrl+s", "^s", "Save a picture", "SVG, into exports/ of the run's record", "Console"),
    Action("export", "ctrl+e", "^e", "Export the data", "CSV and JSON of this screen, into exports/ of its record", "Console"),
    Action("leave", "q", "q", "Detach", "close this console; the run goes on", "Console", ("app",), "Detach"),
)  # fmt: skip

BY_ID: Final = {action.id: action for action in ACTIONS}


def of(where: Where) -> list[Action]:
    """What a screen has of its own, in the registry's order."""
    return [action for action in ACTIONS if where in action.where]


def footer_of(where: Where) -> list[Action]:
    return [action for action in ACTIONS if action.footer and (where in action.where or "app" in action.where)]


def bindings(where: Where, ids: Iterable[str] = ()) -> list[BindingType]:
    """Textual bindings of one screen (or of the named actions), each with the id a key map refers to."""
    wanted = set(ids)
    chosen = [action for action in ACTIONS if (action.id in wanted if wanted else where in action.where)]
    return [Binding(action.keys, action.run, action.title, show=False, id=action.id) for action in chosen]
