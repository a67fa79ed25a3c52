"""Token ids of an answer, by one of three ways, chosen before anything starts (`token_ids`).

server: the server gives them, and its own count must agree. tokenizer: the answer's text is tokenised here; that need not
be the tokens generated, so a count that differs is told once and not held against the server. count: as many zeros as the
server counts; versions and facts say that they are no ids.
"""

from __future__ import annotations

import logging
from array import array
from typing import TYPE_CHECKING

from harness.engines.base import ArgumentError
from harness.engines.openai.args import WHERE, tokenizer_file
from harness.engines.openai.stream import Answer, Choice, StreamError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

log = logging.getLogger("paceline.engine.openai")

_SET_OTHERWISE = f'set {WHERE}.token_ids = "tokenizer" or "count", or use a server that returns them'


class Tokens:
    def __init__(self, how: str, tokenizer: Tokenizer | None) -> None:
        self._how, self._tokenizer = how, tokenizer
        self._differed = False

    def detokenised(self, ids: list[int]) -> str:
        assert self._tokenizer is not None, "parse_args requires one for chat"
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def first(self, choice: Choice) -> bytes:
        """Of the first fragment, one token."""
        if self._how == "count":
            return bytes(4)
        ids = choice.token_ids if self._how == "server" else self._tokenised(choice.fragment())
        if not ids:
            raise StreamError(f"the server gives text without token ids; {_SET_OTHERWISE}")
        return _packed(ids[:1])

    def all(self, answer: Answer) -> bytes:
        counted = answer.usage_tokens
        if self._how == "count":
            if not counted:
                raise StreamError("the server gave no usage, and without it tokens cannot be counted")
            return bytes(4 * counted)
        ids = answer.ids if self._how == "server" else self._tokenised(answer.text)
        if not ids:
            raise StreamError("an answer without a token")
        if counted is not None and counted != len(ids):
            if self._how == "server":
                raise StreamError(f"the server counts {counted:,d} output tokens and sent {len(ids):,d} ids")
            if not self._differed:
                self._differed = True
                log.warning("an answer of %d tokens makes %d here: its text tokenised again", counted, len(ids))
        return _packed(ids)

    def _tokenised(self, text: str) -> list[int]:
        assert self._tokenizer is not None, "parse_args requires one for this way"
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids) if text else []


def _packed(ids: list[int]) -> bytes:
    try:
        return array("i", ids).tobytes()
    except OverflowError:
        raise StreamError("a token id that does not fit into 32 bits") from None


def read_tokenizer(path: str) -> Tokenizer:
    file = tokenizer_file(path)
    from tokenizers import Tokenizer  # 30 ms that only this way pays

    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for a file that it cannot use
        raise ArgumentError(f"{WHERE}.tokenizer = {path!r}: not a tokenizer.json of the tokenizers library: {error}") from error
