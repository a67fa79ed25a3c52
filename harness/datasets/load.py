"""From a RunSpec to its Dataset: finds the file, picks the reader, counts what came."""

from __future__ import annotations

from pathlib import Path

from harness.datasets.dataset import Dataset, DatasetError
from harness.datasets.jsonl import read_jsonl
from harness.datasets.lengths import make_lengths
from harness.datasets.parquet import read_parquet
from harness.datasets.pickles import read_pickle
from harness.datasets.text import Texts
from harness.spec import RunSpec


def load(spec: RunSpec, base: Path | None = None) -> Dataset:
    """Relative paths start from `base` (the spec file's folder), else from here. Raises DatasetError."""
    wanted = spec.dataset
    if wanted.kind == "lengths":
        return make_lengths(wanted, spec.model.vocab_size)
    if wanted.path is None:
        raise DatasetError(f"dataset.path is needed by dataset.kind = {wanted.kind}")
    path = _at(wanted.path, base)
    if path.is_dir():
        raise DatasetError("is a folder; dataset.path names one file", path)
    if not path.is_file():
        raise DatasetError(
            f"does not exist (dataset.path = {wanted.path!r}; relative paths start from {base or Path.cwd()})", path
        )
    texts = Texts(_at(wanted.tokenizer, base) if wanted.tokenizer else None)
    read = {"jsonl": read_jsonl, "parquet": read_parquet, "mlperf-pickle": read_pickle}[wanted.kind]
    try:
        dataset = read(path, texts, wanted.samples)
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror or error}", path) from error
    if wanted.samples is not None and len(dataset) < wanted.samples:
        raise DatasetError(f"has {len(dataset)} samples, dataset.samples = {wanted.samples} asks for more", path)
    return dataset


def _at(path: str, base: Path | None) -> Path:
    return (base or Path()) / Path(path).expanduser()
