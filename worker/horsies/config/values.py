"""Values as people write them outside of code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from horsies.config.keys import Kind

if TYPE_CHECKING:
    from horsies.config.keys import Key

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def plain(key: Key, value: Any) -> Any:
    """The value itself, or None where the key allows it and it was written as "none" or -1."""
    says_none = value.strip().lower() == "none" if isinstance(value, str) else type(value) is int and value == -1
    return None if key.is_optional and says_none else value


def from_text(key: Key, text: str) -> Any:
    """The value an environment variable stands for; text that cannot be read stays text, for the model to refuse."""
    match key.kind:
        case Kind.TEXT:
            return text
        case Kind.BOOLEAN:
            return _BOOLEANS.get(text.strip().lower(), text)
        case Kind.JSON:
            try:
                return json.loads(text)
            except ValueError:
                return text
