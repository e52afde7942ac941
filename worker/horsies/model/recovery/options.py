"""What a sweep is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from horsies.model.settings.recovery import RecoveryConfig


LONGEST: Final = timedelta(days=3650)
GREATEST_FACTOR: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """None leaves a value to the fleet, and where nobody lives to the local settings."""

    sweep_threshold: timedelta | None = None
    """How long a silence condemns, whatever an owner says itself; ages are then plain."""
    recovery_delay: timedelta | None = None
    dry_run: bool = False
    """List what would be done, without a lock and without a write."""
    worker_id: UUID | None = None
    """Only the tasks of this owner; no task that waits, and no workflow."""
    force: bool = False
    """Plain ages, and thresholds however short."""
    recovery_config: RecoveryConfig | None = None
    """Replaces everything that the fleet says, the owner's own thresholds included; ages are then plain."""
    resilient_multiplier: int | None = None
    resilient_flags: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.sweep_threshold is not None:
            check_threshold(self.sweep_threshold, "the threshold of a sweep")
        if self.recovery_delay is not None and not _is_duration(self.recovery_delay, least=timedelta(0)):
            raise ValueError(
                f"the recovery delay of a sweep must be a timedelta of at most {LONGEST.days} days, not below 0"
            )
        if self.resilient_multiplier is not None and not _is_factor(self.resilient_multiplier):
            raise ValueError(f"the resilient multiplier of a sweep must be a whole number, 1 to {GREATEST_FACTOR}")
        if self.resilient_flags is not None and not _are_names(self.resilient_flags):
            raise ValueError("the resilient flags of a sweep must be a list of names")

    @property
    def is_plain(self) -> bool:
        """Whether the caller has said what silence means, so that no amnesty is known."""
        return self.force or self.sweep_threshold is not None or self.recovery_config is not None


def check_threshold(threshold: object, called: str) -> None:
    """Refuse in words what is no silence that anybody could wait for."""
    if not isinstance(threshold, timedelta):
        raise ValueError(f"{called} must be a timedelta above 0")  # noqa: TRY004  # one kind of refusal, whatever is wrong
    if not _is_duration(threshold, least=timedelta(microseconds=1)):
        raise ValueError(f"{called} must be a time such as 90s or 5m, above 0 and of at most {LONGEST.days} days")


def _is_duration(value: object, *, least: timedelta) -> bool:
    return isinstance(value, timedelta) and least <= value <= LONGEST


def _is_factor(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= GREATEST_FACTOR


def _are_names(value: object) -> bool:
    """A text is a sequence of texts too, and never meant as one."""
    return not isinstance(value, str) and all(isinstance(each, str) for each in cast("Iterable[object]", value))
