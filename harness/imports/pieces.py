"""Files of any size, piece by piece: a piece ends at a separator (a newline, a brace), and is at most `MOST` bytes long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from harness.imports.errors import ImportProblem
from harness.imports.told import Progress

BLOCK: Final = 1 << 22
#: The longest piece; what is longer is no line of the files that are read here.
MOST: Final = 64 << 20


@dataclass(slots=True)
class Pieces:
    """Iterate over it once. `too_long`: pieces that were skipped; `rest`: what followed the last separator."""

    path: Path
    progress: Progress
    separator: bytes = b"\n"
    most: int = MOST
    too_long: int = 0
    rest: bytes = b""

    def __iter__(self) -> Iterator[bytes]:
        """Raises ImportProblem."""
        try:
            with self.path.open("rb") as file:
                total = self.path.stat().st_size
                begun: list[bytes] = []  # blocks of a piece that has not ended
                held, done, skipping = 0, 0, False
                while block := file.read(BLOCK):
                    done += len(block)
                    self.progress(f"reading {self.path.name}", done, total)
                    *ended, last = block.split(self.separator)
                    if ended:
                        if skipping:
                            skipping = False
                        else:
                            yield b"".join([*begun, ended[0]])
                        begun, held = [], 0
                        yield from ended[1:]
                    if skipping:
                        continue
                    begun.append(last)
                    held += len(last)
                    if held > self.most:
                        self.too_long += 1
                        begun, held, skipping = [], 0, True
                self.rest = b"".join(begun)
        except OSError as error:
            raise ImportProblem(f"{self.path}: cannot be read: {error.strerror or error}") from error


def json_file(path: Path, most: int) -> object | None:
    """The value of a JSON file; None where there is no such file. Raises ImportProblem."""
    try:
        size = path.stat().st_size
        if size > most:
            raise ImportProblem(f"{path}: {size:,d} bytes are more than such a file has (at most {most:,d}); not read")
        return msgspec.json.decode(path.read_bytes())  # type: ignore[no-any-return]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ImportProblem(f"{path}: cannot be read: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ImportProblem(f"{path}: is not JSON: {error}") from error
