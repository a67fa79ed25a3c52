"""labels.json of a run: the tags, the note and the pin that people gave it. No head writes or reads it.

Text of a labels.json may be anybody's (a record can come from elsewhere): what could not have been typed is left out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from harness.records.errors import RecordError
from harness.records.files import write_atomically
from harness.records.layout import RunFolder

MAX_TAGS: Final = 32
MAX_NOTE: Final = 2000
#: What has a meaning in filters (`tag:a|tag:b`, `!tag:a`) and on command lines cannot be in a tag.
_TAG: Final = re.compile(r"[^\W_][\w.+/#:@-]{0,39}")
TAG_RULE: Final = "1 to 40 letters, digits or . + - _ / # : @, beginning with a letter or digit"


class BadLabel(Exception):
    """Not a tag or a note; the text says what one is."""


class Labels(msgspec.Struct, frozen=True):
    """`pinned`: not deleted unless that is forced."""

    tags: list[str] = []
    note: str = ""
    pinned: bool = False


_decoder = msgspec.json.Decoder(Labels)


def read_labels(folder: RunFolder) -> Labels:
    """Empty ones where there is no file. Raises RecordError for a file that is not what we write."""
    try:
        found = _decoder.decode(folder.labels_json.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return Labels()
    except OSError as error:
        raise RecordError.from_os(folder.labels_json, "read", error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(folder.labels_json, f"damaged: {error}; without that file the run has no labels") from error
    tags = [tag for tag in found.tags if _TAG.fullmatch(tag)][:MAX_TAGS]
    return Labels(tags, one_line(found.note)[:MAX_NOTE], found.pinned)


def change_labels(folder: RunFolder, change: Callable[[Labels], Labels]) -> Labels:
    """Read, change, write, while nobody else does; the new ones. Raises RecordError, and what `change` raises."""
    with _alone(folder):
        before = read_labels(folder)
        after = change(before)
        if after != before:
            write_atomically(folder.labels_json, msgspec.json.format(msgspec.json.encode(after)) + b"\n")
    return after


def with_tags(labels: Labels, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Labels:
    """Upper and lower case are the same tag, written as it was first. Raises BadLabel."""
    without = {checked_tag(tag).casefold() for tag in remove}
    tags = {tag.casefold(): tag for tag in labels.tags if tag.casefold() not in without}
    for tag in add:
        tags.setdefault(checked_tag(tag).casefold(), tag)
    if len(tags) > MAX_TAGS:
        raise BadLabel(f"a run has at most {MAX_TAGS} tags; these would be {len(tags)}")
    return msgspec.structs.replace(labels, tags=list(tags.values()))


def with_note(labels: Labels, note: str) -> Labels:
    """Raises BadLabel."""
    note = one_line(note)
    if len(note) > MAX_NOTE:
        raise BadLabel(f"a note has at most {MAX_NOTE:,d} characters; this one has {len(note):,d}")
    return msgspec.structs.replace(labels, note=note)


def with_pin(labels: Labels, pinned: bool) -> Labels:
    return msgspec.structs.replace(labels, pinned=pinned)


def checked_tag(tag: str) -> str:
    """Raises BadLabel."""
    if not _TAG.fullmatch(tag):
        raise BadLabel(f"{tag!r} is not a tag: {TAG_RULE}")
    return tag


def one_line(text: str) -> str:
    """Without control characters (a terminal would obey them), blanks run together."""
    return " ".join("".join(mark if mark.isprintable() else " " for mark in text).split())


@contextlib.contextmanager
def _alone(folder: RunFolder) -> Iterator[None]:
    """A lock on the folder itself, apart from the head's; the kernel frees it with the process."""
    try:
        handle = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise RecordError.from_os(folder.path, "read", error) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
