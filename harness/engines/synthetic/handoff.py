"""What a synthetic prefill replica hands to the decode replica: no KV cache, but enough to notice a wrong one.

A real handoff names blocks of memory on another machine; a wrong one gives wrong tokens or none. This one names the
engine, the version and the prompt's length, and whoever gets it refuses what is not of its kind.
"""

from __future__ import annotations

import msgspec

ENGINE = "synthetic"


class Handoff(msgspec.Struct):
    engine: str
    version: str
    prompt_tokens: int


_DECODER = msgspec.json.Decoder(Handoff)


def write(version: str, prompt_tokens: int) -> bytes:
    return msgspec.json.encode(Handoff(ENGINE, version, prompt_tokens))


def trouble(handoff: bytes, version: str, prompt_tokens: int) -> str:
    """Why the KV cache of this prompt cannot be fetched with it, in words; "" when it can."""
    if not len(handoff):
        return "the decode query carries an empty handoff: no prefill replica has said where the KV cache is"
    try:
        given = _DECODER.decode(handoff)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return f"the handoff is not one of the {ENGINE} engine ({error})"
    if given.engine != ENGINE:
        return f"the handoff is of engine {given.engine!r}, this replica's is {ENGINE!r}"
    if given.version != version:
        return f"the handoff is of version {given.version}, this replica's is {version}: their KV caches do not fit"
    if given.prompt_tokens != prompt_tokens:
        return f"the handoff is for a prompt of {given.prompt_tokens} tokens, the query's has {prompt_tokens}"
    return ""
