"""Token ids back into text, by the model's own tokenizer from this machine's disk. Special tokens stay: gpt-oss marks its
final answer with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from harness.mlperf.accuracy.errors import ScoringError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Texts:
    """Raises ScoringError for a file that is no tokenizer, and for ids that it does not know."""

    def __init__(self, path: Path) -> None:
        self.path = path / "tokenizer.json" if path.is_dir() else path
        if not self.path.is_file():
            raise ScoringError("does not exist; --tokenizer names the model's tokenizer.json or its folder", self.path)
        from tokenizers import Tokenizer  # 30 ms that only scoring pays

        try:
            self._tokenizer: Tokenizer = Tokenizer.from_file(str(self.path))
        except Exception as error:  # the library raises bare Exception for a file that it cannot use
            raise ScoringError(f"is not a tokenizer.json of the tokenizers library: {error}", self.path) from error
        known = np.fromiter(self._tokenizer.get_vocab(with_added_tokens=True).values(), np.int64)
        self._known = np.zeros(int(known.max(initial=-1)) + 1, bool)
        self._known[known] = True

    def decode(self, answers: Sequence[tuple[int, npt.NDArray[np.int32]]]) -> list[str]:
        """(place in the dataset, ids) of each; together, since the library then uses every core."""
        for index, ids in answers:
            wrong = (ids < 0) | (ids >= len(self._known))
            if not wrong.any():
                wrong = ~self._known[ids]
            if wrong.any():
                at = int(wrong.argmax())
                raise ScoringError(
                    f"does not know token {int(ids[at])}, the {at + 1:,d}. of sample {index}'s answer (it knows "
                    f"{int(self._known.sum()):,d} tokens): is it the tokenizer of the model that answered?",
                    self.path,
                )
        return self._tokenizer.decode_batch([ids.tolist() for _, ids in answers], skip_special_tokens=False)
