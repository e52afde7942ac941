"""JSON as it is stored: canonical, and free of what PostgreSQL or another reader would refuse."""

from __future__ import annotations

import json
import json.encoder
import math
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

if TYPE_CHECKING:
    from pydantic import JsonValue

MAX_DEPTH: Final = 256

MAX_PARSED_DEPTH: Final = 200
"""What pydantic's own JSON parser still reads; values that it has to read must not be deeper."""

SHORT_CHARACTERS: Final = 500

REPLACEMENT: Final = "\ufffd"

_PLAIN_SCALARS = frozenset({bool, type(None)})
_LARGEST_INT = 10**4300 - 1
"""With more digits Python neither writes nor reads a number, unless told to."""

_TEXT_OR_LARGE_FLOAT = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9.]+e\+[0-9]+')
# A value that holds itself ends in a RecursionError; looking for it in each value costs more than that one does.
_encoder = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, check_circular=False, separators=(",", ":")
)


def _make_iterencode() -> Callable[[JsonValue, int], Iterable[str]]:
    """What writes JSON, in pieces. `JSONEncoder.encode` makes its C part anew for each value, two thirds of a short
    one's time."""
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return lambda value, _level: _encoder.encode(value)
    return make(None, _encoder.default, json.encoder.encode_basestring, None, ":", ",", True, False, False)  # noqa: FBT003


_iterencode = _make_iterencode()


class PayloadError(ValueError):
    """A value cannot be stored or read; says where and why, and never shows the value."""

    def __init__(self, reason: str, *, parameter: str | None = None) -> None:
        super().__init__(reason if parameter is None else f"argument {parameter!r}: {reason}")
        self.reason = reason
        self.parameter = parameter


class DocumentPart(NamedTuple):
    """A piece of a document, looked at by itself only when something is wrong with the whole."""

    value: JsonValue
    max_depth: int = MAX_DEPTH
    parameter: str | None = None


def encode_document(document: JsonValue, parts: Iterable[DocumentPart]) -> str:
    """The document as it is stored; `PayloadRefused` names the first part that cannot be."""
    try:
        text = canonical_json(document)
    except ValueError:
        text = None
    if text is not None and not needs_full_check(text):
        return text
    for part in parts:
        if fault := find_json_fault(part.value, max_depth=part.max_depth):
            raise PayloadError(fault, parameter=part.parameter)
    if text is None:
        raise PayloadError("cannot be written as JSON")
    return text


def encode_short_scalars(scalars: Any) -> str | None:
    """An array of plain scalars as it is stored, where a glance shows that nothing is wrong with it; else None."""
    try:
        text = "".join(_iterencode(scalars, 0))
    except ValueError:
        return None
    is_short = len(text) <= SHORT_CHARACTERS
    return text if is_short and text.isascii() and "\\u0000" not in text and "e+" not in text else None


def canonical_json(value: JsonValue) -> str:
    """The one text of a JSON value: keys sorted, no white space, characters as they are; `ValueError` if it has none.

    Not everything that `fault_in` finds is refused here: ask `is_suspect` about the text.
    """
    try:
        text = "".join(_iterencode(value, 0))
    except RecursionError:
        raise ValueError("nested too deep") from None
    return _TEXT_OR_LARGE_FLOAT.sub(_expand_exponent, text) if "e+" in text else text


def _expand_exponent(found: re.Match[str]) -> str:
    """A float from 1e16 on with all its digits: jsonb keeps the point of a number but not its exponent."""
    written = found[0]
    return written if written.startswith('"') else f"{float(written):.1f}"


def parse_json(text: str | bytes) -> JsonValue:
    """The value of stored JSON; `ValueError` when it is none."""
    try:
        # Decoded here: stored JSON is UTF-8, and `loads` would first look which of five encodings it might be.
        return json.loads(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ValueError("nested too deep") from None


def needs_full_check(text: str) -> bool:
    """Whether canonical JSON may hold a fault that encoding lets pass; cheap, and true more often than it must be.

    A NUL is only ever written as this escape, a lone surrogate is in no UTF-8, and fewer brackets than levels allowed
    cannot be too deep. Whoever gets a yes asks `fault_in`.
    """
    if "\\u0000" in text:
        return True
    # Nor can a text that is no longer than that; most are not.
    if len(text) > MAX_PARSED_DEPTH and text.count("[") + text.count("{") > MAX_PARSED_DEPTH:
        return True
    return not text.isascii() and not is_utf8_encodable(text)


def is_utf8_encodable(text: str) -> bool:
    """Whether text can be written as UTF-8, that is, holds no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def find_json_fault(value: object, *, max_depth: int = MAX_DEPTH) -> str | None:
    """Why a value is no storable plain JSON, or None when it is.

    Only the plain types themselves count, not their subclasses. Walks without recursion, so that neither deep nor
    cyclic values can exhaust the stack.
    """
    waiting: list[tuple[object, int]] = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if type(item) is list or type(item) is dict:
            if depth > max_depth:
                return f"is nested more than {max_depth} levels deep, or holds itself"
            fault, children = _open_container(cast("list[object] | dict[object, object]", item))
            waiting.extend((child, depth + 1) for child in children)
        else:
            fault = _fault_of_scalar(item)
        if fault is not None:
            return fault
    return None


def replace_unstorable(text: str) -> str:
    """Text that can be stored: U+FFFD stands for each NUL and each lone surrogate."""
    return text.replace("\0", REPLACEMENT).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _open_container(container: list[object] | dict[object, object]) -> tuple[str | None, Iterable[object]]:
    if isinstance(container, list):
        return None, container
    faults = (_fault_of_text(key) if type(key) is str else "has a key that is not text" for key in container)
    return next(filter(None, faults), None), container.values()


def _fault_of_scalar(item: object) -> str | None:
    match item:
        case str() if type(item) is str:
            return _fault_of_text(item)
        case float() if type(item) is float:
            return None if math.isfinite(item) else "holds NaN or Infinity"
        case int() if type(item) is int:
            return None if -_LARGEST_INT <= item <= _LARGEST_INT else "holds a number of more than 4300 digits"
        case _ if type(item) in _PLAIN_SCALARS:
            return None
        case _:
            return f"holds a value of type {type(item).__qualname__}, which is no plain JSON value"


def _fault_of_text(text: str) -> str | None:
    if "\0" in text:
        return "holds a NUL character"
    return None if text.isascii() or is_utf8_encodable(text) else "holds a lone surrogate"
