"""What lies behind an exception: libraries wrap what the network and TLS said, several layers deep."""

from __future__ import annotations

_MOST = 50


def chain(error: BaseException) -> list[BaseException]:
    """The exception, its causes and contexts, and the members of groups; each once."""
    found: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo and len(found) < _MOST:
        one = todo.pop()
        if one is None or one in found:
            continue
        found.append(one)
        todo += [one.__cause__, one.__context__]
        todo += getattr(one, "exceptions", ())
    return found
