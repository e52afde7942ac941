"""Whose fault it is that a statement failed."""

from __future__ import annotations

from horsies.errors import BrokerError, DatabaseUnreachable


def is_away(error: BaseException) -> bool:
    """Whether the database is to blame, and not what is stored in it."""
    return isinstance(error, DatabaseUnreachable) or (isinstance(error, BrokerError) and error.retryable)
