"""A container's surroundings on this machine: its volumes as folders, its environment, and its command rewritten for both.

There is no mount namespace, so a mountPath is replaced by its folder wherever it occurs in command, args and env; and no
cluster DNS, so the name of a Service is replaced by 127.0.0.1, where every pod listens.
"""

from __future__ import annotations

import base64
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import Json
from .jobpods import INDEX
from .loops import uid_of
from .quantities import amounts

ADDRESS = "127.0.0.1"
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)")
_SERVICE = re.compile(r"(?<![\w.-])[a-z0-9][a-z0-9-]*\.[a-z0-9][a-z0-9-]*\.svc(\.cluster\.local)?(?![\w-])")
_PYTHON = {"paceline": [sys.executable, "-m", "console.cli"], "python": [sys.executable], "python3": [sys.executable]}


class NotMounted(Exception):
    """A volume's object is not there; said as the kubelet says it."""


class NotConfigured(Exception):
    """A variable of the environment has no source."""


Find = Callable[[str, str, str], Json | None]  # kind, namespace, name


@dataclass(frozen=True)
class Mounts:
    """mountPath → folder, of one container."""

    folders: Mapping[str, Path]

    def translated(self, text: str) -> str:
        text = _SERVICE.sub(ADDRESS, text)
        if not self.folders:
            return text
        paths = "|".join(re.escape(path) for path in sorted(self.folders, key=len, reverse=True))
        # Only whole parts of a path: /etc/keys is not in /etc/keys-of-others, nor in /opt/etc/keys.
        return re.sub(rf"(?<![\w./-])({paths})(?![\w.-])", lambda found: str(self.folders[found[1]]), text)


class Volumes:
    """Of one pod. Claims are folders of the whole cluster, by namespace and name, and outlive the pod."""

    def __init__(self, pod: Json, folder: Path, claims: Path, find: Find) -> None:
        self._pod = pod
        self._folder = folder
        self._claims = claims
        self._find = find
        self._namespace: str = pod["metadata"]["namespace"]
        self._made: dict[str, Path] = {}

    def make(self) -> None:
        """Raises NotMounted."""
        for volume in self._pod["spec"].get("volumes") or ():
            self._made[volume["name"]] = self._make(volume)

    def mounts_of(self, container: Json) -> Mounts:
        folders = {}
        for mount in container.get("volumeMounts") or ():
            source = self._made[mount["name"]]
            if "subPath" in mount:
                source = source / mount["subPath"]
                if not source.exists():
                    source.mkdir(parents=True)
            folders[mount["mountPath"].rstrip("/")] = source
        return Mounts(folders)

    def _make(self, volume: Json) -> Path:
        place: Path = self._folder / "volumes" / volume["name"]
        if "persistentVolumeClaim" in volume:
            name: str = volume["persistentVolumeClaim"]["claimName"]
            place = self._claims / self._namespace / name
            place.mkdir(parents=True, exist_ok=True)
        elif "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        else:
            place.mkdir(parents=True, exist_ok=True)
            for kind, source, mode in _sources(volume):
                self._write_files(place, volume["name"], kind, source, mode)
        return place

    def _write_files(self, place: Path, volume: str, kind: str, source: Json, mode: int) -> None:
        name = source.get("secretName") or source["name"]
        found = self._find(kind, self._namespace, name)
        if found is None:
            if source.get("optional"):
                return
            what = {"Secret": "secret", "ConfigMap": "configmap"}[kind]
            raise NotMounted(f'MountVolume.SetUp failed for volume "{volume}" : {what} "{name}" not found')
        files = {item["key"]: item["path"] for item in source.get("items") or ()}
        for key, data in contents(kind, found).items():
            if files and key not in files:
                continue
            path = place / files.get(key, key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.touch(mode=0o600)
            path.write_bytes(data)
            path.chmod(mode)


def _sources(volume: Json) -> list[tuple[str, Json, int]]:
    """(kind, source, mode of its files) of what is written into a volume."""
    kinds = {"secret": "Secret", "configMap": "ConfigMap"}
    if "projected" in volume:
        found = [
            (kinds[word], source[word]) for source in volume["projected"].get("sources") or () for word in kinds if word in source
        ]
        return [(kind, source, 0o400) for kind, source in found]
    return [(kind, volume[word], 0o400) for word, kind in kinds.items() if word in volume]


def contents(kind: str, found: Json) -> dict[str, bytes]:
    """Of a Secret or a ConfigMap."""
    if kind == "Secret":
        return {key: base64.b64decode(text) for key, text in (found.get("data") or {}).items()}
    plain = {key: text.encode() for key, text in (found.get("data") or {}).items()}
    return plain | {key: base64.b64decode(text) for key, text in (found.get("binaryData") or {}).items()}


def environment(pod: Json, container: Json, find: Find) -> dict[str, str]:
    """What the pod's spec says of it. Raises NotConfigured."""
    namespace = pod["metadata"]["namespace"]
    found: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        for word, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if word in source:
                obj = find(kind, namespace, source[word]["name"])
                found |= {key: data.decode() for key, data in contents(kind, obj or {}).items()}
    for variable in container.get("env") or ():
        value = variable.get("value", "") if "valueFrom" not in variable else _from(pod, container, variable["valueFrom"], find)
        if value is not None:
            found[variable["name"]] = expanded(value, found) if "valueFrom" not in variable else value
    return found


def _from(pod: Json, container: Json, source: Json, find: Find) -> str | None:
    if "fieldRef" in source:
        return field_of(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        resources = container.get("resources") or {}
        kind, _, name = source["resourceFieldRef"]["resource"].partition(".")
        return str(int(amounts(resources.get(kind)).get(name, os.cpu_count() or 1)))
    for word, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        if word in source:
            wanted = source[word]
            obj = find(kind, pod["metadata"]["namespace"], wanted["name"])
            data = contents(kind, obj or {})
            if wanted["key"] in data:
                return data[wanted["key"]].decode()
            if wanted.get("optional"):
                return None
            missing = f'{kind.lower()} "{wanted["name"]}" not found' if obj is None else f"couldn't find key {wanted['key']}"
            raise NotConfigured(missing)
    raise NotConfigured(f"no source of a variable in {source}")


def field_of(pod: Json, path: str) -> str:
    """The downward API."""
    metadata, spec = pod["metadata"], pod["spec"]
    named = re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path)
    if named:
        return str((metadata.get(named[1]) or {}).get(named[2], ""))
    values = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": uid_of(pod),
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": ADDRESS,
        "status.podIPs": ADDRESS,
        "status.hostIP": ADDRESS,
    }
    return str(values[path])


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """$(NAME) as Kubernetes does it: an unknown one stays, $$ is one $."""

    def replace(found: re.Match[str]) -> str:
        name = found[1]
        return "$" if name is None else variables.get(name, found[0])

    return _REFERENCE.sub(replace, text)


def command_of(container: Json, variables: Mapping[str, str], mounts: Mounts) -> list[str]:
    """What to run here. An image without a command is taken for one of ours, whose entry point is paceline."""
    words = [*(container.get("command") or ["paceline"]), *(container.get("args") or ())]
    first, *rest = [mounts.translated(expanded(word, variables)) for word in words]
    return [*_PYTHON.get(Path(first).name, [first]), *rest]


def base_environment(pod: Json, folder: Path) -> dict[str, str]:
    """What the image and the kubelet would set."""
    home = folder / "home"
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    name = pod["metadata"]["name"]
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "LANG": "C.UTF-8",
        "HOSTNAME": pod["spec"].get("hostname", name),
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),  # the image has the code that is tested
        MARK: uid_of(pod),
    }


MARK = "PACELINE_FAKE_POD"  # by which everything that a pod left running is found
__all__ = ["INDEX", "MARK", "Mounts", "NotConfigured", "NotMounted", "Volumes", "base_environment", "command_of", "environment"]
