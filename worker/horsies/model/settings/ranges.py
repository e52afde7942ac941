"""Numbers with bounds; True, "5" and NaN are not numbers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, Strict

Seconds = Annotated[int, Strict()] | Annotated[float, Strict()]


def between(low: int, high: int) -> Any:
    """A whole number from `low` to `high`, both included."""
    return Field(strict=True, ge=low, le=high)


def at_least(low: int) -> Any:
    return Field(strict=True, ge=low)
