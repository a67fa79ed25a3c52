"""The fake cluster's kubelet that runs containers as processes, and the kit around it: what system tests build on."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import ClusterKit, cluster_of
from fake.containers import Mounts, command_of, expanded
from fake.loops import condition_of, is_true
from job_targets import worker_job

Json = dict[str, Any]
PATIENCE_S = 60


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[ClusterKit]:
    with cluster_of(2, tmp_path, processes=True, backoff_s=0.5, racks=2) as made:
        yield made


def job(code: str, nodes: int = 1, *, pod: Json | None = None, container: Json | None = None, **spec: Any) -> Json:
    """A worker Job whose container runs a line of Python."""
    made = worker_job(nodes, **spec)
    template = made["spec"]["template"]["spec"]
    template.update(pod or {})
    template["containers"][0].update({"command": ["python", "-c", code]} | (container or {}))
    return made


def the_log(kit: ClusterKit, index: int = 0) -> list[str]:
    return [line for pod in kit.pods(index=index, living=False) for line in kit.log(pod["metadata"]["name"])]


WAIT = "import time; time.sleep(600)"


def test_a_container_runs_and_its_lines_are_its_log(kit: ClusterKit) -> None:
    kit.create("Job", job(f"import sys; print('out'); print('err', file=sys.stderr); {WAIT}"))
    kit.until(lambda: the_log(kit) == ["out", "err"], PATIENCE_S, "both lines")
    kit.until(lambda: kit.ready() == 1, PATIENCE_S, "ready")


def test_what_runs_in_a_pod_knows_where_it_is(kit: ClusterKit) -> None:
    env: list[Json] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in {
            "POD_NAME": "metadata.name",
            "POD_NAMESPACE": "metadata.namespace",
            "NODE_NAME": "spec.nodeName",
            "POD_IP": "status.podIP",
        }.items()
    ]
    names = [variable["name"] for variable in env]
    code = f"import os, sys; print(sys.argv[1], *(os.environ[n] for n in {[*names, 'JOB_COMPLETION_INDEX']})); {WAIT}"
    arguments = {"env": env, "args": ["worker-$(JOB_COMPLETION_INDEX)"]}
    kit.create("Job", job(code, 2, container=arguments))
    kit.until(lambda: the_log(kit, 1), PATIENCE_S, "a line")
    pod = kit.pods(index=1)[0]
    assert the_log(kit, 1) == [f"worker-1 {pod['metadata']['name']} paceline {pod['spec']['nodeName']} 127.0.0.1 1"]


def test_volumes_are_folders_and_paths_lead_there(kit: ClusterKit) -> None:
    kit.create("ConfigMap", {"metadata": {"name": "run"}, "data": {"spec.json": "{}"}})
    kit.create("Secret", {"metadata": {"name": "keys"}, "data": {"worker.key": base64.b64encode(b"secret").decode()}})
    volumes = [
        {"name": "run", "configMap": {"name": "run"}},
        {"name": "keys", "secret": {"secretName": "keys"}},
        {"name": "results", "persistentVolumeClaim": {"claimName": "paceline-results"}},
        {"name": "state", "emptyDir": {}},
    ]
    paths = {"run": "/etc/paceline", "keys": "/etc/paceline-keys", "results": "/results", "state": "/run/paceline"}
    code = (
        "import os, sys; from pathlib import Path; run, keys, results, ready = map(Path, sys.argv[1:]); "
        "print(run.read_text(), keys.read_text(), oct(keys.stat().st_mode & 0o777)); "
        "results.mkdir(); (results / 'run.json').write_text('record'); ready.touch(); " + WAIT
    )
    arguments = ["/etc/paceline/spec.json", "/etc/paceline-keys/worker.key", "/results/RUN", "/run/paceline/registered"]
    probe = {"exec": {"command": ["test", "-f", "/run/paceline/registered"]}, "periodSeconds": 5}
    mounts = [{"name": name, "mountPath": path} for name, path in paths.items()]
    container = {"args": arguments, "volumeMounts": mounts, "readinessProbe": probe, "startupProbe": probe}
    kit.create("Job", job(code, pod={"volumes": volumes}, container=container))
    kit.until(lambda: kit.ready() == 1, PATIENCE_S, "ready by its file")
    kit.until(lambda: the_log(kit), PATIENCE_S, "its line")
    assert the_log(kit) == ["{} secret 0o400"]
    assert (kit.claim("paceline-results") / "RUN" / "run.json").read_text() == "record"


def test_a_secret_that_is_missing_keeps_the_container_from_starting(kit: ClusterKit) -> None:
    volumes = [{"name": "keys", "secret": {"secretName": "late"}}]
    kit.create("Job", job(WAIT, pod={"volumes": volumes}))
    kit.until(lambda: any(e["reason"] == "FailedMount" for e in kit.listed("Event")), PATIENCE_S, "an Event")
    state = kit.pods()[0]["status"]["containerStatuses"][0]["state"]
    assert state == {"waiting": {"reason": "ContainerCreating"}}
    kit.create("Secret", {"metadata": {"name": "late"}, "data": {}})
    kit.until(lambda: kit.ready() == 1, PATIENCE_S, "started after all")


def test_an_exit_code_decides_what_the_job_does(kit: ClusterKit) -> None:
    kit.create("Job", job("raise SystemExit(42)", 2))
    kit.until(lambda: (kit.get("Job", "worker") or {})["status"].get("failedIndexes"), PATIENCE_S, "a failed index")
    ended = next(pod for pod in kit.listed("Pod") if pod["status"]["phase"] == "Failed")
    terminated = ended["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (42, "Error")


def test_an_evicted_pod_gets_sigterm_and_its_successor_comes(kit: ClusterKit) -> None:
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (print('drained'), sys.exit(143))); "
        "print('up'); time.sleep(600)"
    )
    kit.create("Job", job(code))
    kit.until(lambda: the_log(kit) == ["up"], PATIENCE_S, "running")
    pod = kit.pods()[0]["metadata"]
    url = f"{kit.cluster.url}/api/v1/namespaces/paceline/pods/{pod['name']}/eviction"
    answer = _post(kit, url, {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["name"]}})
    assert answer == 201
    kit.until(
        lambda: [p for p in kit.pods() if p["metadata"]["uid"] != pod["uid"] and is_true(p, "Ready")], PATIENCE_S, "successor"
    )
    assert "failed" not in (kit.get("Job", "worker") or {})["status"]


def _post(kit: ClusterKit, url: str, body: Json) -> int:
    import httpx

    token = kit.cluster.access.admin_token
    return httpx.post(url, json=body, headers={"Authorization": f"Bearer {token}"}, timeout=10).status_code


def test_what_ignores_sigterm_is_killed_with_all_it_started(kit: ClusterKit) -> None:
    code = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True); "
        "print(child.pid); time.sleep(600)"
    )
    kit.create("Job", job(code, pod={"terminationGracePeriodSeconds": 1}))
    kit.until(lambda: the_log(kit), PATIENCE_S, "its child's pid")
    child, pod = int(the_log(kit)[0]), kit.pods()[0]["metadata"]
    pids = [child, *kit.pids(pod["name"])]
    kit.on(lambda: kit.cluster.store.delete("Pod", "paceline", pod["name"]))
    kit.until(lambda: not any(_runs(pid) for pid in pids), PATIENCE_S, "both gone")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_a_container_killed_for_memory_says_so(kit: ClusterKit) -> None:
    kit.create("Job", job(WAIT))
    kit.until(lambda: kit.ready() == 1, PATIENCE_S, "running")
    name = kit.pods()[0]["metadata"]["name"]
    kit.kill(name, oom=True)
    kit.until(lambda: (kit.get("Pod", name) or {})["status"]["phase"] == "Failed", PATIENCE_S, "failed")
    terminated = (kit.get("Pod", name) or {})["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (137, "OOMKilled")


def test_a_rule_of_the_container_restarts_it_in_place(kit: ClusterKit) -> None:
    kit.claim("paceline-results").mkdir(parents=True, exist_ok=True)
    flag = kit.claim("paceline-results") / "once"
    code = (
        f"import os, sys; p = {str(flag)!r}; first = not os.path.exists(p); open(p, 'w').close(); first and sys.exit(88); {WAIT}"
    )
    rules = {
        "restartPolicy": "Never",
        "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [88]}}],
    }
    kit.create("Job", job(code, container=rules))

    def restarted() -> bool:
        status = (kit.pods() or [{"status": {}}])[0]["status"]
        return any(box["restartCount"] == 1 and box["ready"] for box in status.get("containerStatuses", ()))

    kit.until(restarted, PATIENCE_S, "restarted in place")
    assert "failed" not in (kit.get("Job", "worker") or {})["status"]


def test_only_pods_with_a_mounted_token_have_credentials(kit: ClusterKit) -> None:
    code = f"import os; print(bool(os.environ.get('KUBECONFIG'))); {WAIT}"
    for account, mounted, expected in (("paceline-head", True, "True"), ("paceline-worker", False, "False")):
        pod = {"serviceAccountName": account, "automountServiceAccountToken": mounted}
        made = job(code, pod=pod) | {"metadata": {"name": account}}
        kit.create("Job", made)
        kit.until(lambda account=account: _logs_of(kit, account), PATIENCE_S, "a line")  # type: ignore[misc]
        assert _logs_of(kit, account) == [expected]


def _logs_of(kit: ClusterKit, start: str) -> list[str]:
    names = [pod["metadata"]["name"] for pod in kit.pods() if pod["metadata"]["name"].startswith(start)]
    return [line for name in names for line in kit.log(name)]


def test_a_command_that_does_not_exist_fails_the_pod(kit: ClusterKit) -> None:
    kit.create("Job", job("", container={"command": ["no-such-program"]}))
    kit.until(lambda: any(p["status"]["phase"] == "Failed" for p in kit.listed("Pod")), PATIENCE_S, "failed")
    ended = next(pod for pod in kit.listed("Pod") if pod["status"]["phase"] == "Failed")
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "StartError"


def test_paceline_in_a_pod_is_the_one_under_test(kit: ClusterKit) -> None:
    kit.create("Job", job("", container={"command": ["paceline"], "args": ["--version"]}))
    kit.until(lambda: (kit.get("Job", "worker") or {})["status"].get("succeeded") == 1, 60, "complete")


def test_nothing_is_left_when_the_cluster_ends(tmp_path: Path) -> None:
    with cluster_of(1, tmp_path, processes=True) as kit:
        kit.create("Job", job(WAIT))
        kit.until(lambda: kit.ready() == 1, PATIENCE_S, "running")
        pids, folder = kit.pids("worker"), kit.folder
        assert pids
    assert not any(_runs(pid) for pid in pids)
    assert not folder.exists()


def test_the_api_server_may_be_away_while_pods_go_on(kit: ClusterKit) -> None:
    kit.create("Job", job(WAIT))
    kit.until(lambda: kit.ready() == 1, PATIENCE_S, "running")
    before = kit.pids("worker")
    kit.cluster.stop()
    kit.kill("worker")
    kit.until(lambda: kit.pids("worker") and kit.pids("worker") != before, PATIENCE_S, "replaced meanwhile")
    kit.cluster.start()


def test_names_of_services_and_mounts_are_rewritten_whole() -> None:
    mounts = Mounts({"/etc/paceline": Path("/a"), "/etc/paceline-keys": Path("/b"), "/tmp": Path("/c")})
    assert mounts.translated("tcp://run-head.paceline.svc:5555") == "tcp://127.0.0.1:5555"
    assert mounts.translated("--keys=/etc/paceline-keys") == "--keys=/b"
    assert mounts.translated("/etc/paceline/spec.json") == "/a/spec.json"
    assert mounts.translated("/opt/etc/paceline /tmpfs") == "/opt/etc/paceline /tmpfs"
    assert mounts.translated("/tmp:/etc/paceline") == "/c:/a"


def test_variables_are_expanded_as_kubernetes_does() -> None:
    assert expanded("$(A)-$(B)-$$(A)-$A", {"A": "1"}) == "1-$(B)-$(A)-$A"
    assert command_of({"args": ["head", "$(X)"]}, {"X": "y"}, Mounts({})) == [sys.executable, "-m", "console.cli", "head", "y"]


def test_stub_pods_are_only_status(tmp_path: Path) -> None:
    with cluster_of(64, tmp_path) as kit:
        kit.create("Job", worker_job(64))
        kit.until(lambda: (kit.get("Job", "worker") or {})["status"].get("ready") == 64, PATIENCE_S, "64 ready")
        assert condition_of(kit.pods()[0], "PodScheduled") is not None
        assert os.listdir(kit.folder) == []
