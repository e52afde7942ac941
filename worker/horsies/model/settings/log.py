"""What is logged, and in which form."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Strict

from horsies.errors import ErrorCode
from horsies.model.settings.base import Settings


def _upper(level: Any) -> Any:
    return level.upper() if isinstance(level, str) else level


class LogConfig(Settings):
    """The least level that is written, lines for people or JSON for machines, and whether SQL is logged."""

    fault_code: ClassVar[ErrorCode | None] = ErrorCode.CLI_INVALID_ARGS

    level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(_upper)] = "INFO"
    format: Literal["text", "json"] = "text"
    statements: Annotated[bool, Strict()] = False
