"""What `paceline metrics` was asked for, checked: which source, which span, which file."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from console.cli.errors import BadInput
from harness.metricspec import GpuSourceSpec
from harness.records.runfile import RunFile

FORMATS: Final = (".csv", ".parquet", ".json")
_OFFSET: Final = re.compile(r"\+(\d+(?:\.\d+)?)(s|m|min|h)?")
_UNITS: Final = {None: 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TABLE: Final = "metrics.gpu."


def source_of(run: RunFile, url: str | None, overrides: Sequence[str]) -> GpuSourceSpec:
    """The run's own [metrics.gpu] with what was given here. Raises BadInput."""
    metrics = run.spec.get("metrics")
    told = metrics.get("gpu") if isinstance(metrics, dict) else None
    raw: dict[str, Any] = dict(told) if isinstance(told, dict) else {}
    if url is not None:
        raw |= {"url": url, "source": "auto", "with_prometheus": False}
    for override in overrides:
        from harness.specfile import parse_value

        name, equals, text = override.partition("=")
        field = name.strip().removeprefix(_TABLE)
        if not equals or "." in field:
            raise BadInput(f"-s {override!r} is not of the form {_TABLE}field=value")
        raw[field] = parse_value(text.strip())
    try:
        return GpuSourceSpec.model_validate(raw)
    except ValidationError as error:
        raise BadInput("\n".join(_sentence(one) for one in error.errors(include_url=False))) from error


def _sentence(one: Any) -> str:
    field = ".".join(str(part) for part in one["loc"]) or "url"
    if one["type"] == "extra_forbidden":
        return f"{_TABLE}{field}: there is no such field; there are {', '.join(GpuSourceSpec.model_fields)}"
    value = one["input"]
    shown = f" {value!r}" if isinstance(value, str | int | float | bool) else ""
    return f"{_TABLE}{field}{shown}: {one['msg'].removeprefix('Value error, ')}"


def moment(text: str, option: str, start_unix: float) -> float:
    """Seconds since 1970, a date and time (local where it names no zone), or +seconds after the run's start."""
    if (offset := _OFFSET.fullmatch(text.strip())) is not None:
        return start_unix + float(offset[1]) * _UNITS[offset[2]]
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        what = "2026-11-30T10:00:00, seconds since 1970, or +90s after the run's start"
        raise BadInput(f"{option} {text!r} is no moment; write {what}") from None


def out_file(out: str) -> Path:
    """One that can be written, and is not there yet. Raises BadInput."""
    path = Path(out).expanduser()
    if path.suffix not in FORMATS:
        raise BadInput(f"--out {out!r} has to end in {', '.join(FORMATS)}, which says what is written")
    if path.exists():
        raise BadInput(f"--out {out!r} is there already, and nothing is written over; name another file")
    if not path.parent.is_dir():
        raise BadInput(f"--out {out!r}: there is no folder {path.parent}")
    return path
