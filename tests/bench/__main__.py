"""`make bench`: runs every tests/bench/bench_*.py (or those named), prints a table as it goes, writes build/bench.json.

Each module offers `run() -> list[dict]` with name, value, unit, goal and ok. Goals are ratios within one run where they
can be, and ratios are printed first: absolute rates say more about the machine than about us, so its load is printed as
well. A row without a goal is there to be read. Exits with 1 if a goal is missed or a bench fails.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OUT = HERE.parents[1] / "build" / "bench.json"

NEEDS_VLLM = "vllm_"

Row = dict[str, Any]


def main() -> int:
    rows: list[Row] = []
    for name in chosen():
        began_s = time.monotonic()
        found = ratios_first(measured(name))
        for row in found:
            print(line_of(row), flush=True)
        rows += found
        took_s, load = time.monotonic() - began_s, os.getloadavg()[0]
        print(f"      {name} took {took_s:.0f} s; load average {load:.1f} on {os.cpu_count()} CPUs\n", flush=True)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=2) + "\n")
    missed = [row["name"] for row in rows if row["ok"] is False]
    print(f"{len(rows)} figures in {OUT}" + (f"; goals missed: {'; '.join(missed)}" if missed else ""))
    return 1 if missed else 0


def chosen() -> list[str]:
    there = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    parser = argparse.ArgumentParser(prog="make bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("which", nargs="*", help=f"benches to run, of {', '.join(there)}; none means all")
    parser.add_argument("-k", metavar="PATTERN", default="", help="only benches whose name contains this")
    asked = parser.parse_args()
    if unknown := sorted(set(asked.which) - set(there)):
        parser.error(f"there is no bench {', '.join(unknown)}; there are {', '.join(there)}")
    names = [name for name in asked.which or there if asked.k in name]
    if find_spec("vllm") is None and not asked.which:
        for name in names:
            if name.startswith(NEEDS_VLLM):
                print(f"      {name} is skipped: vLLM is not installed in this environment (make bench-vllm)")
        names = [name for name in names if not name.startswith(NEEDS_VLLM)]
    if not names:
        parser.error(f"no bench has {asked.k!r} in its name; there are {', '.join(there)}")
    return names


def measured(name: str) -> list[Row]:
    """The bench's figures; a bench that raises is one figure that missed its goal."""
    try:
        found: list[Row] = importlib.import_module(f"tests.bench.bench_{name}").run()
    except Exception:
        traceback.print_exc()
        found = [{"name": f"{name}: failed", "value": None, "unit": "", "goal": "runs", "ok": False}]
    return found


def ratios_first(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["unit"] != "ratio")


def line_of(row: Row) -> str:
    value = row["value"]
    if isinstance(value, float):
        value = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    has_goal = row["goal"] not in ("", None)
    mark = "MISS" if row["ok"] is False else "ok" if has_goal else ""
    goal = f"  goal {row['goal']}" if has_goal else ""
    return f"{mark:<5} {row['name']:<72} {value!s:>10} {row['unit']:<10}{goal}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
