"""The plugin of vLLM (entry point `paceline_moe` in vllm.general_plugins): gpt-oss's MXFP4 experts on the kernel of this package.

    PACELINE_MOE=paceline            turns it on; with anything else vLLM is left as it is
    PACELINE_KERNEL_STORE=FOLDER     tuned configurations; vLLM's own tables there are used with the plugin on or off
    PACELINE_KERNELS_REPORT=FOLDER   into which each process that loads experts writes what it loaded, as <pid>.json

vLLM calls `register` in every process, some of which fork later, and some often: it touches no device, may be called again, and
never raises, since an exception here would end the engine. Where the plugin does not fit (vLLM's version, its internals, no
triton) vLLM's own kernel runs, with a warning in the log and the reason in the report.
"""

from __future__ import annotations

import importlib.util
import logging
import os

SWITCH = "PACELINE_MOE"
ON = "paceline"
STORE = "PACELINE_KERNEL_STORE"

log = logging.getLogger("vllm.paceline_moe")


def register() -> None:
    if os.environ.get(STORE):
        try:
            from kernels.plugin.tables import point_vllm_to_them

            point_vllm_to_them()
        except Exception:
            log.exception("vLLM's tables of fused_moe could not be looked for")
    if os.environ.get(SWITCH, "") != ON:
        return
    try:
        reason = why_not()
        if not reason:
            from kernels.plugin import method

            method.register()
            return
    except Exception as error:
        log.exception("the MoE kernel of Paceline could not be registered")
        reason = f"{type(error).__name__}: {error}"
    _leave_to_vllm(reason)


def why_not() -> str:
    """Why the plugin does not fit this process; empty: it does."""
    import vllm

    from kernels.plugin import versions

    if reason := versions.refusal(str(vllm.__version__)):
        return reason
    if missing := [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]:
        return f"{' and '.join(missing)} cannot be imported in this Python; install it beside vLLM"
    if differences := versions.differences():
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        return f"vLLM {vllm.__version__} is not as the plugin needs it: {differences[0]}{more}"
    return ""


def _leave_to_vllm(reason: str) -> None:
    log.warning("%s=%s: vLLM's own MoE kernel runs, not Paceline's: %s", SWITCH, ON, reason)
    try:
        from kernels.plugin import noting

        noting.register(reason)
    except Exception as error:  # a vLLM without that class: nothing there can tell when layers are loaded
        from kernels.plugin.loaded import this_process

        log.warning("and which layers it loads cannot be told: %s", error)
        this_process().layer_fell_back(reason)
