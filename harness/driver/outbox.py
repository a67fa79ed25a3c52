"""What leaves over the data socket: queries with their prompts, and the few words besides. Hot.

Prompts and expected lengths lie here as plain bytes and lists: indexing numpy for every query costs more than sending it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import zmq

from harness.datasets import Dataset
from harness.driver.ledger import Member, Sample
from harness.wire import data
from harness.wire.frames import PROTOCOL_VERSION, encode

Send = Callable[[Member, Sample], bool]

_VERSION = bytes([PROTOCOL_VERSION])
_NOW = int(zmq.NOBLOCK)  # plain ints: pyzmq converts enum flags at every call
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_WARM_TOKENS = 2


class Outbox:
    def __init__(self, router: zmq.Socket[bytes], epoch: int, dataset: Dataset, max_tokens: int) -> None:
        self.n_prompt = [dataset.n_prompt(index) for index in range(len(dataset))]
        self.expected: list[int] = dataset.expected_tokens.tolist()
        self._prompts = [bytes(dataset.prompt(index)) for index in range(len(dataset))]
        self._router, self._epoch, self._max_tokens = router, epoch, max_tokens
        self._encode = msgspec.msgpack.Encoder().encode

    def query(self, member: Member, sample: Sample) -> bool:
        """The whole sample to one replica; False when it cannot be reached."""
        index, send = sample.index, self._router.send
        query = data.Query(self._epoch, sample.seq, sample.tries, member.slot, self._max_tokens, self.expected[index], index)
        try:
            send(member.identity, _MORE)
            send(_VERSION + self._encode(query), _MORE)
            send(self._prompts[index], _NOW)
        except zmq.ZMQError:
            return False  # only the identity can fail: there is no such peer (any more)
        return True

    def stage(self, member: Member, sample: Sample) -> bool:
        """One stage of a sample where roles are split. A negative number is a pair's warm-up: two tokens."""
        index, seq, stage, send = sample.index, sample.seq, sample.stage, self._router.send
        limit, expected = (self._max_tokens, self.expected[index]) if seq >= 0 else (_WARM_TOKENS, _WARM_TOKENS)
        query = data.Query(self._epoch, seq, sample.tries, member.slot, limit, expected, index, stage)
        try:
            send(member.identity, _MORE)
            send(_VERSION + self._encode(query), _MORE)
            if stage == data.DECODE:
                send(self._prompts[index], _MORE)
                send(sample.handoff, _NOW)
            else:
                send(self._prompts[index], _NOW)
        except zmq.ZMQError:
            return False
        return True

    def cancel(self, member: Member, sample: Sample) -> None:
        self.tell(member.identity, data.Cancel(self._epoch, sample.seq, sample.tries))

    def refuse(self, identity: bytes, reason: str) -> None:
        self.tell(identity, data.Refused(reason))

    def tell(self, identity: bytes, message: data.ToReplica) -> None:
        try:
            self._router.send_multipart((identity, encode(message)), zmq.NOBLOCK)
        except zmq.ZMQError:
            return  # gone again: it will say HELLO when it is back
