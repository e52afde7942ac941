"""Queues and the mode that decides whether they have names."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from horsies.errors import ErrorCode
from horsies.model.settings.base import Settings
from horsies.model.settings.ranges import at_least, between
from horsies.model.settings.wording import Says


class QueueMode(StrEnum):
    """One nameless queue, or several that tasks choose from."""

    DEFAULT = "default"
    CUSTOM = "custom"


class CustomQueueConfig(Settings):
    """A named queue: 1 is served first, and at most `max_concurrency` of its tasks are in flight in the fleet."""

    fault_code: ClassVar[ErrorCode | None] = ErrorCode.CONFIG_INVALID_QUEUE_MODE

    name: Annotated[
        str,
        Field(strict=True, pattern=r"\A[A-Za-z0-9_.-]{1,100}\z"),
        Says("a name of 1 to 100 letters, digits, dots, dashes or underscores"),
    ]
    priority: Annotated[int, between(1, 100)] = 1
    max_concurrency: Annotated[int | None, at_least(0)] = None
