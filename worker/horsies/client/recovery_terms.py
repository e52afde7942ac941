"""What recovery at a program's word goes by. Apart from it: every app has terms, and hardly a producer recovers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from horsies.model.settings import RecoveryConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from horsies.model.workflow.plan import Definitions
    from horsies.recovery.hooks import Asking


def no_hooks() -> None:
    """Nobody is asked."""


class NothingDefined:
    """The workflow definitions of a broker without an app: none."""

    def build(self, definition_key: str, kwargs: Mapping[str, object], injected: Mapping[str, object]) -> None:
        """Left to a worker that knows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryTerms:
    """What a broker knows of its app: settings for where no worker lives, hooks to ask, workflows to build."""

    local: RecoveryConfig = field(default_factory=RecoveryConfig)
    hooks: Callable[[], Asking | None] = no_hooks
    definitions: Definitions = field(default_factory=NothingDefined)
