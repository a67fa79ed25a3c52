"""Versions and place of this process, as REGISTER carries them."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import zmq

from harness.spec import RunSpec
from harness.worker.identity import identity

_VISIBLE = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def own_versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "pyzmq": zmq.__version__, "libzmq": zmq.zmq_version()}
    with suppress(PackageNotFoundError):  # run from a source tree
        versions["paceline"] = version("paceline")
    return versions


def accelerator(spec: RunSpec, node: int, gpu: int) -> dict[str, str]:
    """What the environment says about the accelerator, and which devices it is (harness/worker/identity.py), by which metrics
    of GPUs find their replica; empty where nothing is known."""
    seen = {name: os.environ[name] for name in _VISIBLE if os.environ.get(name)}
    ordinal = {"ordinal": str(gpu)} if seen else {}
    return {**seen, **ordinal, **identity(spec, node, gpu)}
