"""An error that is a value, in one line: for the message of an exception that it ends up in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast


def told(error: Any) -> str:
    """Its code and its message, and the class of the exception behind a task's failure; else its repr.

    Data and tracebacks may be long or secret; whoever wants them has the value.
    """
    if not hasattr(error, "message"):
        return repr(error)
    code = getattr(error, "error_code", None) or getattr(error, "code", None)
    said = ": ".join(str(part) for part in (code, error.message) if part) or type(error).__qualname__
    raised = _class_of(getattr(error, "exception", None)) if hasattr(error, "error_code") else None
    return said if raised is None else f"{said} ({raised})"


def _class_of(exception: object) -> str | None:
    if isinstance(exception, BaseException):
        return type(exception).__qualname__
    # As it is stored.
    return cast("Mapping[str, Any]", exception).get("type") if isinstance(exception, Mapping) else None
