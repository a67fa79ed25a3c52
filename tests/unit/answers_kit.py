"""Attempts whose answers were made up: a tokenizer of bytes, and LoadGen's accuracy log as LoadGen writes it."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from harness.engines.tinymodel import write_tiny_model
from harness.mlperf.accuracy.score import Work
from harness.mlperf.accuracy.texts import Texts
from harness.mlperf.accuracy.truths import Truths


@functools.cache
def tokenizer_file() -> Path:
    """Of every byte one token: any text comes back as it was."""
    folder = Path(tempfile.mkdtemp(prefix="paceline-test-"))
    write_tiny_model(folder)
    return folder / "tokenizer.json"


@functools.cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_file()))


def ids_of(text: str) -> list[int]:
    ids: list[int] = _tokenizer().encode(text, add_special_tokens=False).ids
    return ids


def hexed(ids: Sequence[int]) -> str:
    return np.array(ids, "<i4").tobytes().hex().upper()


def line(seq: int, index: int, ids: Sequence[int], **more: Any) -> str:
    entry = {"seq_id": seq, "qsl_idx": index, "data": hexed(ids), "token_data": hexed(ids[:1]), "token_count": len(ids)} | more
    return json.dumps({name: value for name, value in entry.items() if value is not None})


def write_lines(folder: Path, lines: Iterable[str], end: str = "\n]\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mlperf_log_accuracy.json"
    path.write_text("[\n" + ",\n".join(lines) + end)
    return path


def write_answers(folder: Path, answers: Sequence[str]) -> Path:
    """Sample i was answered with the i-th text; the last one came first."""
    order = list(reversed(range(len(answers))))
    return write_lines(folder, (line(seq, index, ids_of(answers[index])) for seq, index in enumerate(order)))


def work_over(folder: Path, asked: Sequence[tuple[str, str, str]], **more: Any) -> Work:
    """`asked`: subset, truth and answer of each sample. Writes the log."""
    write_answers(folder, [answer for _, _, answer in asked])
    truths = Truths(folder / "truths.jsonl", [subset for subset, _, _ in asked], [truth for _, truth, _ in asked])
    return Work(folder, truths, Texts(tokenizer_file()), **more)
