"""The manifests as files: where they are, one run's base of them as plain dictionaries, and objects as YAML again.

The base is the same YAML that `kubectl apply -k` takes. It is the only place where a pod is described; what renders a run
sets values in it and adds none of its own but what the spec asks for.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from harness.cluster.base import ClusterError

Object = dict[str, Any]  # a Kubernetes object, as JSON has it

#: Name of the run in the base: its objects are called paceline-run, paceline-head, …
BASE_RUN = "paceline"


def manifests_folder() -> Path:
    """harness/cluster/kube/_manifests in an installed wheel, manifests/ in a checkout."""
    installed = Path(__file__).parent / "_manifests"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "manifests"


def base_objects() -> dict[tuple[str, str], Object]:
    """Fresh copies of the base's objects by kind and by the end of their name: ("Job", "worker"), ("ConfigMap", "run"), …"""
    found = json.loads(_base_text(manifests_folder() / "base"))
    return {(kind, end): thing for kind, end, thing in found}


@functools.cache
def _base_text(folder: Path) -> str:
    """As JSON: parsing the YAML takes 60 times as long."""
    try:
        listed = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
        files = [yaml.safe_load_all((folder / name).read_text(encoding="utf-8")) for name in listed]
        things = [thing for file in files for thing in file]
        return json.dumps([(t["kind"], t["metadata"]["name"].removeprefix(f"{BASE_RUN}-"), t) for t in things])
    except OSError as error:
        raise ClusterError(
            f"{error.filename}: {error.strerror}; the manifests belong to the installation: install again"
        ) from error
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise ClusterError(f"{folder}: not the manifests of a run ({error}); install again, or undo the change there") from error


#: To YAML the end of a line, which a block or a folded text would come back as; quoted they are escaped.
_BREAKS = frozenset("\r\x85\u2028\u2029")


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Without anchors, and with text of several lines as a block."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    style = '"' if _BREAKS.intersection(value) else "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(objects: Iterable[Object]) -> str:
    """For `kubectl apply -f -`."""
    return str(yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=120, allow_unicode=True))
