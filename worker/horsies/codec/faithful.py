"""The JSON form of a value held against the value itself, for what pydantic would write without a word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from pydantic import Secret, SecretBytes, SecretStr

from horsies.codec.members import bare, members
from horsies.codec.wire import PayloadRefused, canonical

if TYPE_CHECKING:
    from collections.abc import Collection

    from pydantic import JsonValue

_SECRETS: tuple[type[object], ...] = (Secret, SecretBytes, SecretStr)


def faithful(plain: JsonValue, typed: object) -> JsonValue:
    """`plain` with each array that stands for a set sorted by the canonical text of its elements.

    Sets come in another order in every process, and equal arguments must have equal fingerprints. A NaN or Infinity
    written as null and a secret written as its mask are refused. `typed` is the same value before it became JSON;
    where the two differ in shape, because a serializer of the user's own says so, `plain` is left alone.
    """
    typed = bare(typed)
    if isinstance(plain, dict):
        return _faithful_object(plain, typed)
    if plain is None and isinstance(typed, float):
        raise PayloadRefused("holds NaN or Infinity")
    if isinstance(typed, _SECRETS) and plain and plain == str(typed):
        raise PayloadRefused("holds a secret, of which only the mask would be stored")
    if not isinstance(plain, list) or not isinstance(typed, list | tuple | set | frozenset):
        return plain
    twins = cast("Collection[object]", typed)
    if len(twins) != len(plain):
        return plain
    ordered = [faithful(value, twin) for value, twin in zip(plain, twins, strict=True)]
    return sorted(ordered, key=canonical) if isinstance(typed, set | frozenset) else ordered


def _faithful_object(plain: dict[str, JsonValue], typed: object) -> JsonValue:
    inner = members(typed)
    if inner is None:
        return plain
    if not isinstance(typed, Mapping):
        return {key: faithful(value, inner.get(key)) for key, value in plain.items()}
    # Their keys may be written in another way than they are, but their order is the same.
    if len(inner) != len(plain):
        return plain
    return {key: faithful(value, twin) for (key, value), twin in zip(plain.items(), inner.values(), strict=True)}
