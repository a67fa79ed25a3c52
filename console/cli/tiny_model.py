"""`paceline tiny-model`: a model of random weights, for engines that load one; and the one that the demo keeps."""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import shutil
from pathlib import Path
from typing import Annotated, Literal

import platformdirs
from cyclopts import Parameter

from console.cli.errors import OK, BadInput
from console.cli.output import plural, say, say_json, typed
from harness.records.aside import folder_aside

Kind = Literal["llama", "gpt-oss"]
WHAT = {"llama": "Llama", "gpt-oss": "gpt-oss (experts, sinks)"}


def tiny_model(
    folder: Path,
    /,
    *,
    kind: Annotated[Kind, Parameter(help="Which architecture: llama or gpt-oss")] = "llama",
    seed: Annotated[int, Parameter(help="The same seed writes the same files")] = 0,
    force: Annotated[bool, Parameter(negative="", help="Write into a folder that is not empty, over such files")] = False,
    json: Annotated[bool, Parameter(name="--json", negative="", help="Print JSON")] = False,
) -> int:
    """Write a model of RANDOM WEIGHTS with its tokenizer, for trying real engines without a download. No language model."""
    if seed < 0:
        raise BadInput(f"tiny-model: --seed {seed} must not be negative")
    folder = folder.expanduser()
    try:
        _check_place(folder, force)
    except OSError as error:  # a name too long, a folder that may not be read
        raise BadInput(f"tiny-model: {_short(folder)} cannot be used: {error.strerror}; name another folder") from error
    files = _write(folder, kind, seed)
    size = sum(path.stat().st_size for path in files)
    if json:
        facts = {"folder": str(folder.absolute()), "kind": kind, "seed": seed, "random_weights": True, "bytes": size}
        say_json({**facts, "files": [path.name for path in files]})
        return OK
    say(f"{folder}: a tiny {WHAT[kind]} of RANDOM WEIGHTS, {plural(len(files), 'file')}, {size / 1e6:.1f} MB")
    say("It runs an engine and says nothing: not a language model. To serve it under load on a CPU:")
    override = shlex.quote(f"model.path={folder}")
    say(f"  {typed(f'demo --engine vllm-cpu -s {override}')}")
    return OK


def _check_place(folder: Path, force: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"tiny-model: {folder} is a file; a folder is written")
    for part in (folder, *folder.parents):
        if part.is_symlink() and not part.exists():
            raise BadInput(f"tiny-model: {part} is a link to {part.readlink()}, which is not there; name another folder")
    if not folder.is_dir():
        return
    if not force and any(folder.iterdir()):
        raise BadInput(f"tiny-model: {folder} is not empty; name another folder, or write into it with --force")
    from harness.engines.tinymodel import FILES

    for name in FILES:
        if (folder / name).is_dir():
            raise BadInput(f"tiny-model: {folder / name} is a folder, where a file is to be written; name another folder")


def _short(folder: Path) -> str:
    return str(folder) if len(str(folder)) < 200 else f"{str(folder)[:200]}…"


def kept_model(kind: Kind = "llama") -> Path:
    """The model of seed 0 in the user's cache, under a name made of what is in it: another version writes another."""
    models = platformdirs.user_cache_path("paceline") / "models"
    with contextlib.ExitStack() as stack:
        try:
            models.mkdir(parents=True, exist_ok=True)
            made = stack.enter_context(folder_aside(models, "new-"))
        except OSError as error:
            raise BadInput(f"{models}: the model cannot be kept there: {error.strerror}; set XDG_CACHE_HOME") from error
        made.chmod(0o755)
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in _write(made, kind, 0))).hexdigest()[:12]
        kept = models / f"tiny-{kind}-{digest}"
        if not (kept / "config.json").is_file():
            shutil.rmtree(kept, ignore_errors=True)
            made.rename(kept)
    return kept


def _write(folder: Path, kind: Kind, seed: int) -> list[Path]:
    """The files, by name."""
    from harness.engines.tinymodel import FILES, write_tiny_model

    try:
        write_tiny_model(folder, kind, seed)
    except OSError as error:
        raise BadInput(f"tiny-model: {_short(folder)} cannot be written: {error.strerror}; name another folder") from error
    return [folder / name for name in FILES]
