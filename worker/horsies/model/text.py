"""Text from outside, made safe to show: names, arguments, errors, results are data and never reach a terminal raw."""

from __future__ import annotations

import re

# C0 and C1 controls and DEL, and lone surrogates, which no terminal encoding can carry.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# Characters that reorder or hide what stands around them.
_INVISIBLE = re.compile("[\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def safe(text: str, *, limit: int | None = None) -> str:
    """`text` with control characters written out, reordering ones removed, and cut to `limit` characters with `…`."""
    # Four times the limit leaves room for what is removed, and keeps a megabyte from being read whole.
    read = text if limit is None else text[: 4 * limit]
    shown = _CONTROL.sub(_written_out, _INVISIBLE.sub("", read))
    if limit is not None and (len(shown) > limit or len(read) < len(text)):
        return shown[: limit - 1] + "…"
    return shown


def first_line(text: str, *, limit: int) -> str:
    """The first line of `text` with anything in it, made safe and cut to `limit`; empty where there is none."""
    return safe(text.strip().partition("\n")[0].rstrip(), limit=limit)


def _written_out(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _NAMED.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
