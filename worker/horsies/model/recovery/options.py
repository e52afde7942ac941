"""What a sweep is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta
    from uuid import UUID

    from horsies.model.settings.recovery import RecoveryConfig


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
        if self.sweep_threshold is not None and self.sweep_threshold.total_seconds() <= 0:
            raise ValueError("the threshold of a sweep must be above 0")
        if self.recovery_delay is not None and self.recovery_delay.total_seconds() < 0:
            raise ValueError("the recovery delay of a sweep must not be below 0")
        if self.resilient_multiplier is not None and self.resilient_multiplier < 1:
            raise ValueError("the resilient multiplier of a sweep must be at least 1")

    @property
    def is_plain(self) -> bool:
        """Whether the caller has said what silence means, so that no amnesty is known."""
        return self.force or self.sweep_threshold is not None or self.recovery_config is not None
