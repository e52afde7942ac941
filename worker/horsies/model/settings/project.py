"""Where the application and its tasks are found."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from horsies.errors import ErrorCode
from horsies.model.settings.base import Settings
from horsies.model.settings.wording import Says


class ProjectConfig(Settings):
    """The locator of the app (`package.module:app`) and the modules that define its tasks."""

    fault_code: ClassVar[ErrorCode | None] = ErrorCode.WORKER_INVALID_LOCATOR

    locator: Annotated[str | None, Field(min_length=1), Says("text such as package.module:app")] = None
    modules: Annotated[list[str], Says("a list of module names or .py files")] = Field(default_factory=list[str])
