"""How large the arguments of a task may be."""

from __future__ import annotations

from typing import Annotated, ClassVar

from horsies.errors import ErrorCode
from horsies.model.settings.base import Settings
from horsies.model.settings.ranges import at_least


class PayloadPolicy(Settings):
    """Sizes of encoded arguments, in bytes, from which a send warns or is refused; None switches one off."""

    fault_code: ClassVar[ErrorCode | None] = ErrorCode.CLI_INVALID_ARGS

    warn_bytes: Annotated[int | None, at_least(1)] = 1_048_576
    reject_bytes: Annotated[int | None, at_least(1)] = None
