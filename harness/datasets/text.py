"""Text prompts: encoded with a tokenizer from this machine's disk, never from a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness.datasets.dataset import DatasetError, Ids

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Texts:
    """Encodes texts as the tokenizer's file says, its special tokens included. The file is read at the first text."""

    def __init__(self, tokenizer: Path | None) -> None:
        self._path = tokenizer
        self._tokenizer: Tokenizer | None = None

    def require(self, field: str, path: Path, where: str) -> None:
        """Raises DatasetError when text cannot be encoded; called where the first text is met."""
        if self._path is None:
            raise DatasetError(
                f"holds text only (field {field}) and dataset.tokenizer is not set; set it to a local tokenizer.json or "
                "its folder, or use a file with token ids (input_tokens or tok_input)",
                path,
                where,
            )
        if self._tokenizer is None:
            self._tokenizer = _read(self._path)

    def encode(self, texts: list[str]) -> list[Ids]:
        if not texts:
            return []
        assert self._tokenizer is not None, "require() comes first"
        return [np.array(encoding.ids, np.int32) for encoding in self._tokenizer.encode_batch(texts)]


def _read(path: Path) -> Tokenizer:
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise DatasetError("does not exist; dataset.tokenizer names a local tokenizer.json or the folder that holds one", file)
    from tokenizers import Tokenizer  # 30 ms that only text datasets pay

    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for a file that it cannot use
        raise DatasetError(f"is not a tokenizer.json of the tokenizers library: {error}", file) from error
