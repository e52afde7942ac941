"""How the screens look and how much of the data they show."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, Strict

from horsies.errors import ErrorCode
from horsies.model.settings.base import Settings
from horsies.model.settings.ranges import between
from horsies.model.settings.wording import Says


def _compiling(patterns: list[str]) -> list[str]:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as cause:
            raise ValueError(pattern) from cause
    return patterns


class TuiConfig(Settings):
    """Looks, refresh rate, keys and named filters of the TUI, and the argument names whose values it hides."""

    fault_code: ClassVar[ErrorCode | None] = ErrorCode.CLI_INVALID_ARGS

    read_only: Annotated[bool, Strict()] = False
    theme: Annotated[str, Field(min_length=1), Says("the name of a theme")] = "horsies-dark"
    refresh_ms: Annotated[int, between(100, 60_000)] = 250
    max_rows: Annotated[int, between(50, 5_000)] = 500
    require_reason: Annotated[bool, Strict()] = False
    env: str = ""
    ascii: Annotated[bool, Strict()] = False
    show_args: Literal["masked", "never", "all"] = "masked"
    mask_keys: Annotated[list[str], AfterValidator(_compiling), Says("a list of regular expressions")] = Field(
        default_factory=lambda: ["password", "token", "secret", "key", "authorization"]
    )
    keys: Annotated[Mapping[str, str], Says("a table of action = key")] = Field(default_factory=dict[str, str])
    filters: Annotated[Mapping[str, str], Says("a table of name = filter")] = Field(default_factory=dict[str, str])
