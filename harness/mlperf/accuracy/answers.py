"""Finding the answer in what a model wrote. Empty text in, or no answer in it: None.

The rules are those of the evaluation scripts of mlcommons/inference v6.1 (language/deepseek-r1 and language/gpt-oss-120b,
eval_accuracy.py), written anew here: the last stated answer counts; what gpt-oss puts into its final channel goes before what
it thought; MMLU-Pro falls back to the last letter that stands alone; AIME answers are whole numbers from 0 to 999.
"""

from __future__ import annotations

import re
from typing import Final

#: gpt-oss's chat format. A damaged mark, with a few characters before <|message|>, still opens the final channel.
_CHANNEL: Final = "<|channel|>"
_FINAL: Final = re.compile(r"<\|channel\|>final[^<]{0,200}<\|message\|>")
_END: Final = "<|return|>"
_BOLD: Final = re.compile(r"\*\*([^*]{1,2000})\*\*")
_BOXED: Final = "\\boxed{"
_BOXED_DIGITS: Final = re.compile(r"\\boxed\{\s{0,20}(\d{1,12})\s{0,20}\}")
_SAID_DIGITS: Final = re.compile(r"Answer:\s{0,20}(\d{1,12})(?!\d)(?!\.)\b", re.IGNORECASE)
_FENCE: Final = "```"


def final_section(text: str) -> str | None:
    """What stands in the final channel; None where the model opened none."""
    opened = _FINAL.search(text)
    if opened is None:
        return None
    end = text.find(_END, opened.end())
    return text[opened.end() : end if end >= 0 else len(text)].strip()


def choice(text: str, letters: str) -> str | None:
    """The letter that was chosen among `letters`, such as "ABCD"."""
    text = text.strip().replace("\\n", "\n").replace("\\'", "'")
    section = text
    if _CHANNEL in text:
        section = _BOLD.sub(r"\1", final_section(text) or text)
        leading = re.match(rf"[^a-zA-Z]*([{letters}])(?![a-zA-Z])", section, re.IGNORECASE)
        said = re.search(rf"\bANSWER\s{{0,16}}[:.]?\s{{0,16}}([{letters}])\b", section, re.IGNORECASE)
        if chosen := leading or said:
            return chosen[1].upper()
    stated = rf"\bANSWER\b\s{{0,16}}[:=]?\s{{0,16}}\(?\s{{0,16}}([{letters}])(?![a-zA-Z])"
    if found := _last(stated, text):
        return found
    return _last(rf"\b([{letters}])\b", section) if len(letters) > 4 else None


def _last(pattern: str, text: str) -> str | None:
    found: list[str] = re.findall(pattern, text, re.IGNORECASE)
    return found[-1].upper() if found else None


def boxed(text: str) -> str | None:
    """The content of the last \\boxed{…}; its own braces belong to it."""
    start = text.rfind(_BOXED)
    if start < 0:
        return None
    start += len(_BOXED)
    depth = 0
    for at in range(start, len(text)):
        if text[at] == "{":
            depth += 1
        elif text[at] == "}":
            if not depth:
                return text[start:at].strip() or None
            depth -= 1
    return None


def whole_number(text: str) -> str | None:
    """AIME: the last boxed number, else the last after "Answer:"; from 0 to 999, without leading zeros."""
    found = _BOXED_DIGITS.findall(text) or _SAID_DIGITS.findall(text)
    if not found:
        return None
    value = int(found[-1])
    return str(value) if value <= 999 else None


def code(text: str) -> str | None:
    """A program: the last block of gpt-oss's final channel (or of all that it wrote), else the first that says python."""
    if _CHANNEL not in text:
        blocks = _blocks(text)
        return next((inside for language, inside in blocks if language == "python"), None)
    for part in (final_section(text), text):
        blocks = _blocks(part or "")
        found = [inside for language, inside in blocks if language == "python"] or [inside for _, inside in blocks]
        if found:
            return found[-1]
    return None


def _blocks(text: str) -> list[tuple[str, str]]:
    """(language, inside) of each closed ``` block."""
    parts = text.split(_FENCE)
    found = []
    for inside in parts[1 : len(parts) - 1 : 2]:
        first, line_end, rest = inside.partition("\n")
        named = first.strip().lower()
        if not line_end or not re.fullmatch(r"[\w+#.-]{0,20}", named):
            found.append(("", inside.strip()))
        else:
            found.append(("python" if named in ("python", "py", "python3") else named, rest.strip()))
    return found
