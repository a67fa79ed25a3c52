"""Writes rules.yaml in operator/ and prometheus/ from the rules that the head reads (harness/metrics/gpu/rules/).

One file is a PrometheusRule for clusters with the operator, the other a ConfigMap for the small Prometheus of prometheus/.
`make dashboards` calls it; a test holds both files to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

HERE = Path(__file__).parent
RULES = HERE.parents[1] / "harness" / "metrics" / "gpu" / "rules" / "paceline.rules.yaml"
NAMES = {"app.kubernetes.io/name": "paceline"}
_HEAD = "# Made by ../make_rules.py from harness/metrics/gpu/rules/paceline.rules.yaml: change that, then `make dashboards`.\n"


def main() -> None:
    for file, text in files().items():
        file.write_text(text, encoding="utf-8")


def files() -> dict[Path, str]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    about = {"name": "paceline-rules", "namespace": "paceline", "labels": NAMES}
    rule = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": about, "spec": {"groups": groups}}
    data = {"paceline.rules.yaml": _as_yaml({"groups": groups})}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": data}
    made = {HERE / "operator" / "rules.yaml": rule, HERE / "prometheus" / "rules.yaml": config}
    return {file: _HEAD + _as_yaml(thing) for file, thing in made.items()}


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Texts of several lines as blocks, which people can read."""


def _text(dumper: yaml.SafeDumper, value: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def _as_yaml(thing: Any) -> str:
    made: str = yaml.dump(thing, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=130)
    return made


if __name__ == "__main__":
    main()
