"""Fields of [cluster.kubernetes] that no cluster could use are refused when they are read, with what would be right."""

from __future__ import annotations

import pytest

from harness.cluster.kube.render import render
from harness.specfile import SpecError, load_spec

WRONG = [
    ("namespace=team.a", "namespace: 'team.a' is not a namespace"),
    ("head_cpu=0", "head_cpu: '0' is no amount that a pod can ask for"),
    ("worker_cpu=4Gi", "worker_cpu: '4Gi' is not an amount of CPUs"),
    ("head_memory=500m", "head_memory: '500m' is less than 1Mi"),
    ("worker_memory=8", "worker_memory: '8' is less than 1Mi"),
    ("shm=16K", "shm: '16K' is not an amount of memory; write it as 16Gi or 512Mi"),
    ("shm=0", "shm: '0' is less than 1Mi"),
    ("startup_s=1000000000", "startup_s: 1000000000 is out of range"),
    ("head_restarts=99999999999", "head_restarts: 99999999999 is out of range"),
    ("max_failed=99999999999", "max_failed: 99999999999 is out of range"),
    ("keep_record_s=1e12", "keep_record_s"),
    ('node_selector={"a b"="c"}', "node_selector: 'a b' is not the key of a label"),
    ('node_selector={team="a b"}', "node_selector: team: 'a b' is not the value of a label"),
    ('node_selector={team="ü"}', "node_selector: team: 'ü' is not the value of a label"),
    ('tolerations=[{key="a",value="x"}]', "tolerations.0: value 'x' goes with operator = Equal"),
    ('tolerations=[{operator="Equal",value="x"}]', "tolerations.0: operator Equal needs a key"),
    ('tolerations=[{key="a",toleration_s=5}]', "tolerations.0: toleration_s 5 goes with effect = NoExecute only"),
    ('tolerations=[{key="a b"}]', "tolerations.0: key 'a b' is not the key of a taint"),
    ('avoid_nodes=["a b"]', "avoid_nodes: 'a b' is not the name of a node"),
    ("results_mount=/usr", "results_mount: '/usr' would hide what the image has there; use one like /mnt/usr"),
    ('model_mount="//etc/./"', "model_mount: '//etc/./' would hide what the image has there; use one like /mnt/etc"),
    ('address="http://head"', "address: 'http://head' is not a host"),
    ('address="head:5555"', "address: 'head:5555' is not a host"),
    ('env={"A B"="x"}', "env: 'A B' cannot be the name of a variable; use one like NCCL_DEBUG"),
    ('env={A="\\u0000"}', "env: A: a value without NUL is needed"),
]

RIGHT = [
    "head_cpu=500m", "worker_cpu=1.5", "head_memory=1.5Gi", "shm=64M", "shm=17179869184", 'node_selector={"example.com/pool"=""}',
    'tolerations=[{}]', 'tolerations=[{key="amd.com/gpu",operator="Equal",value="yes",effect="NoExecute",toleration_s=0}]',
    'avoid_nodes=["ip-10-0-0-1.eu-west-1.compute.internal"]', 'address="10.0.0.1"', 'address="[fd00::1]"', 'address="fd00::1"',
    'address="head.example.com"', "address=none", 'env={_A1="x y ü"}', "results_mount=/mnt/usr/", "namespace=5",
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "said"), WRONG, ids=[wrong for wrong, _ in WRONG])
def test_what_no_cluster_could_use_is_told_by_field(wrong: str, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        load_spec("demo", ["cluster.kind=kubernetes", f"cluster.kubernetes.{wrong}"])
    assert f"cluster.kubernetes.{said}" in str(refused.value)


@pytest.mark.parametrize("right", RIGHT)
def test_what_is_unusual_but_right_is_taken(right: str) -> None:
    spec = load_spec("demo", ["cluster.kind=kubernetes", f"cluster.kubernetes.{right}"])
    assert render(spec, "demo-20261130-120000")
