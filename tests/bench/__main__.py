"""`make bench`: runs every tests/bench/bench_*.py (or those named), prints a table, writes build/bench.json.

Each module offers `run() -> list[dict]` with name, value, unit, goal and ok. Goals are ratios within one run where they
can be: absolute rates say more about the machine than about us. Exits with 1 if a goal is missed or a bench fails.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OUT = HERE.parents[1] / "build" / "bench.json"


def main() -> int:
    there = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("which", nargs="*", help=f"benches to run, of {', '.join(there)}; none means all")
    chosen = parser.parse_args().which or there
    if not set(chosen) <= set(there):
        parser.error(f"there is no bench {', '.join(sorted(set(chosen) - set(there)))}; there are {', '.join(there)}")
    rows: list[dict[str, Any]] = []
    for name in chosen:
        began_s = time.monotonic()
        try:
            found = importlib.import_module(f"tests.bench.bench_{name}").run()
        except Exception:
            traceback.print_exc()
            found = [{"name": f"{name}: failed", "value": None, "unit": "", "goal": "runs", "ok": False}]
        for row in found:
            show(row)
        rows += found
        print(f"  {name} took {time.monotonic() - began_s:.0f} s", file=sys.stderr)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=2) + "\n")
    missed = [row["name"] for row in rows if not row["ok"]]
    print(f"{len(rows)} figures in {OUT}" + (f"; goals missed: {', '.join(missed)}" if missed else ""))
    return 1 if missed else 0


def show(row: dict[str, Any]) -> None:
    value = f"{row['value']:,.3g}" if isinstance(row["value"], float) else str(row["value"])
    mark = "ok  " if row["ok"] else "MISS"
    print(f"{mark}  {row['name']:<70} {value:>10} {row['unit']:<12} goal {row['goal']}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
