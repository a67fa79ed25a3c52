"""ResourceQuotas of the fake cluster: refuse a pod at its creation, as admission does, and count what is used."""

from __future__ import annotations

from .errors import ApiError, Json
from .loops import Loop, ended, key_of
from .quantities import amount, asked_by, limits_of, shown
from .store import Store


class QuotaLoop(Loop):
    kinds = ("ResourceQuota", "Pod")

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        store.admission.append(self._admit)

    def sync(self) -> None:
        for quota in self.all("ResourceQuota"):
            namespace = quota["metadata"]["namespace"]
            hard = quota["spec"].get("hard") or {}
            status = {"hard": hard, "used": {name: shown(self._used(namespace, name)) for name in hard}}

            def write(target: Json, status: Json = status) -> None:
                target["status"] = status

            self.store.update("ResourceQuota", *key_of(quota), write, status=True)

    def close(self) -> None:
        super().close()
        self.store.admission.remove(self._admit)

    def _admit(self, kind: str, pod: Json) -> None:
        if kind != "Pod":
            return
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        for quota in self.store.list("ResourceQuota", namespace):
            asked, used, limited = [], [], []
            for resource, hard in (quota["spec"].get("hard") or {}).items():
                wants, has = _of(pod, resource), self._used(namespace, resource)
                if wants and has + wants > amount(str(hard)):
                    asked.append(f"{resource}={shown(wants)}")
                    used.append(f"{resource}={shown(has)}")
                    limited.append(f"{resource}={hard}")
            if asked:
                why = f"requested: {','.join(asked)}, used: {','.join(used)}, limited: {','.join(limited)}"
                message = f'pods "{name}" is forbidden: exceeded quota: {quota["metadata"]["name"]}, {why}'
                raise ApiError(403, "Forbidden", message, {"name": name, "kind": "pods"})

    def _used(self, namespace: str, resource: str) -> float:
        return sum(_of(pod, resource) for pod in self.store.list("Pod", namespace) if not ended(pod))


def _of(pod: Json, resource: str) -> float:
    """How much of one line of a quota a pod takes."""
    if resource in ("pods", "count/pods"):
        return 1.0
    kind, _, name = resource.partition(".")
    if kind == "limits":
        return limits_of(pod).get(name, 0.0)
    return asked_by(pod).get(name if kind == "requests" else resource, 0.0)
