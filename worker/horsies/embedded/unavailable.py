"""The one error of this package: the embedded server cannot run here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.errors import ConfigurationError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

INSTEAD = "set broker.database_url to a PostgreSQL server of your own"
ELSEWHERE = "name another folder with embedded:///dir, or set broker.database_url"


def unavailable(message: str, *, hint: str = INSTEAD, notes: Sequence[str] = ()) -> ConfigurationError:
    """HRS-220 with the cause as its message and a way out as its hint."""
    return ConfigurationError(message, code=ErrorCode.EMBEDDED_UNAVAILABLE, hint=hint, notes=notes)
