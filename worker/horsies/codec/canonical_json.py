"""Canonical JSON for storage, checked for what PostgreSQL or another JSON reader would reject."""

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
"""Depth limit of pydantic's JSON parser, for values that it has to parse."""

REPLACEMENT: Final = "\ufffd"

_PLAIN_SCALARS = frozenset({bool, type(None)})
_LARGEST_INT = 10**4300 - 1
"""By default Python neither formats nor parses integers with more digits."""

_TEXT_OR_LARGE_FLOAT = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9.]+e\+[0-9]+')


def _make_encoder() -> Callable[[JsonValue, int], Iterable[str]]:
    """Build the standard encoder once: `json.dumps` builds it for every value, which takes longer than encoding it."""
    # No circular check: a cyclic value ends in a RecursionError, and checking every value would cost more.
    encoder = json.JSONEncoder(
        ensure_ascii=False, allow_nan=False, sort_keys=True, check_circular=False, separators=(",", ":")
    )
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without the C accelerator
        return lambda value, _level: encoder.encode(value)
    return make(None, encoder.default, json.encoder.encode_basestring, None, ":", ",", True, False, False)  # noqa: FBT003


_encode_pieces = _make_encoder()
_decode = json.JSONDecoder().decode  # what `json.loads` calls after it has looked at its options


class PayloadError(ValueError):
    """A value cannot be stored or decoded. The message never shows the value, which may be secret."""

    def __init__(self, reason: str, *, parameter: str | None = None) -> None:
        super().__init__(reason if parameter is None else f"argument {parameter!r}: {reason}")
        self.reason = reason
        self.parameter = parameter


class DocumentPart(NamedTuple):
    """A piece of a document, checked on its own only if the whole document is invalid."""

    value: JsonValue
    max_depth: int = MAX_DEPTH
    parameter: str | None = None


def encode_document(document: JsonValue, parts: Iterable[DocumentPart]) -> str:
    """Encode the document as canonical JSON; raises PayloadError for the first part that cannot be stored."""
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


def canonical_json(value: JsonValue) -> str:
    """Encode with sorted keys, no white space and unescaped characters; ValueError if the value has no JSON form.

    Does not reject everything that cannot be stored: pass the text to `needs_full_check`.
    """
    try:
        text = "".join(_encode_pieces(value, 0))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return _TEXT_OR_LARGE_FLOAT.sub(_expand_exponent, text) if "e+" in text else text


def _expand_exponent(match: re.Match[str]) -> str:
    """Write a float from 1e16 on with all its digits: jsonb keeps the decimal point but not the exponent."""
    text = match[0]
    return text if text.startswith('"') else f"{float(text):.1f}"


def parse_json(text: str | bytes) -> JsonValue:
    """Parse stored JSON; raises ValueError if it is invalid."""
    try:
        # Decoded here because stored JSON is always UTF-8; `loads` would first detect the encoding.
        return _decode(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None


def needs_full_check(text: str) -> bool:
    """Whether canonical JSON may hold something that cannot be stored; cheap, with false positives.

    NUL is always written as an escape, a lone surrogate cannot be encoded as UTF-8, and a text with fewer brackets than
    the depth limit cannot be too deep. If true, `find_json_fault` decides.
    """
    if "\\u0000" in text:
        return True
    # The length check is first because most texts are short.
    if len(text) > MAX_PARSED_DEPTH and text.count("[") + text.count("{") > MAX_PARSED_DEPTH:
        return True
    return not text.isascii() and not is_utf8_encodable(text)


def utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def is_utf8_encodable(text: str) -> bool:
    """Whether the text has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def find_json_fault(value: object, *, max_depth: int = MAX_DEPTH) -> str | None:
    """Return why a value cannot be stored as plain JSON, or None if it can.

    Subclasses of the plain types do not count as plain. Iterative, so deep or cyclic values cannot exhaust the stack.
    """
    unchecked: list[tuple[Iterable[object], int]] = [((value,), 0)]
    while unchecked:
        values, depth = unchecked.pop()
        for item in values:
            kind = type(item)
            if kind is dict or kind is list:
                if depth == max_depth:
                    return f"is nested more than {max_depth} levels deep, or contains itself"
                if kind is dict:
                    keys = cast("dict[object, object]", item)
                    if fault := _key_fault(keys):
                        return fault
                    unchecked.append((keys.values(), depth + 1))
                else:
                    unchecked.append((cast("list[object]", item), depth + 1))
            elif fault := _scalar_fault(item):
                return fault
    return None


def replace_unstorable(text: str) -> str:
    """Replace each NUL and each lone surrogate with U+FFFD, so that the text can be stored."""
    # Through UTF-16, which joins a surrogate pair into its character: what cannot be decoded then is a lone one.
    return text.replace("\0", REPLACEMENT).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _key_fault(keys: Iterable[object]) -> str | None:
    for key in keys:
        if type(key) is not str:
            return "has a key that is not a string"
        if fault := _text_fault(key):
            return fault
    return None


def _scalar_fault(item: object) -> str | None:
    kind = type(item)
    if kind is str:
        return _text_fault(cast("str", item))
    if kind is int:
        is_printable = -_LARGEST_INT <= cast("int", item) <= _LARGEST_INT
        return None if is_printable else "contains a number with more than 4300 digits"
    if kind is float:
        return None if math.isfinite(cast("float", item)) else "contains NaN or Infinity"
    if kind in _PLAIN_SCALARS:
        return None
    return f"contains a value of type {kind.__qualname__}, which is not a plain JSON value"


def _text_fault(text: str) -> str | None:
    if "\0" in text:
        return "contains a NUL character"
    return None if text.isascii() or is_utf8_encodable(text) else "contains a lone surrogate"
