"""What happens with the due slots of a schedule, and how definitions of an app change the stored schedules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import BeforeValidator, PlainSerializer, TypeAdapter

from horsies.model.schedule.slots import next_slot, slots_from
from horsies.model.settings.patterns import DstGap, IntervalSchedule, SchedulePattern, load_zone, parse_pattern
from horsies.model.settings.schedule import Missed, Overlap

if TYPE_CHECKING:
    from horsies.model.settings.schedule import TaskSchedule

MAX_SLOTS: Final = 1000
"""Slots of one schedule decided in one transaction."""
REFUSALS_TO_FAIL: Final = 3
"""Refused slots in a row after which `doctor` fails."""


class RunKind(StrEnum):
    """What started a run of a schedule."""

    CLOCK = "clock"
    BACKFILL = "backfill"
    MANUAL = "manual"


class SlotOutcome(StrEnum):
    """What happened with a slot."""

    FIRED = "fired"
    SKIPPED = "skipped"
    REFUSED = "refused"
    WAITING = "waiting"


class ScheduleState(StrEnum):
    """Whether a schedule fires; a retired one is no longer defined by its app."""

    ACTIVE = "active"
    DISABLED = "disabled"
    RETIRED = "retired"


# Policies


_StoredPattern = Annotated[
    SchedulePattern,
    BeforeValidator(parse_pattern),
    PlainSerializer(lambda pattern: pattern.to_table(), return_type=dict[str, Any]),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePolicy:
    """When a schedule is due and what happens with missed and overlapping slots; stored as its `definition`.

    A stored definition lacks the fields with default values, so these values cannot change.
    """

    pattern: _StoredPattern
    timezone: str = "UTC"
    dst_gap: DstGap = "skip"
    missed: Missed = "latest"
    missed_within: float | None = None
    grace: float = 60.0
    max_catch_up_runs: int = 100
    good_for: float | str | None = None
    jitter_s: float | None = None
    overlap: Overlap = "allow"
    pause_after_failures: int | None = None

    @classmethod
    def of(cls, schedule: TaskSchedule) -> SchedulePolicy:
        names = (field.name for field in fields(cls))
        policy = cls(**{name: getattr(schedule, name) for name in names})
        return replace(policy, missed=schedule.effective_missed)

    def to_json(self) -> str:
        return _POLICY.dump_json(self).decode()

    def to_definition(self) -> str:
        """As JSON without the fields with default values: each due slot reads it and writes it again with its row."""
        return _POLICY.dump_json(self, exclude_defaults=True).decode()

    @property
    def zone(self) -> ZoneInfo:
        """The time zone; raises ZoneInfoNotFoundError if this machine does not know it."""
        return load_zone(self.timezone)

    def next_slot(self, after: datetime) -> datetime | None:
        return next_slot(self.pattern, self.zone, after, dst_gap=self.dst_gap)

    def slots_from(self, first: datetime) -> Iterator[datetime]:
        return slots_from(self.pattern, self.zone, first, dst_gap=self.dst_gap)

    def anchored(self, anchor: datetime | None) -> SchedulePolicy:
        """Fix the grid of an interval to where it began."""
        if not isinstance(self.pattern, IntervalSchedule) or self.pattern.anchor is not None or anchor is None:
            return self
        return replace(self, pattern=self.pattern.model_copy(update={"anchor": anchor}))

    def has_same_times(self, other: SchedulePolicy) -> bool:
        return (self.pattern, self.timezone, self.dst_gap) == (other.pattern, other.timezone, other.dst_gap)


_POLICY: TypeAdapter[SchedulePolicy] = TypeAdapter(SchedulePolicy)
_POLICY_DEFAULTS: Final = {
    field.name: field.default for field in fields(SchedulePolicy) if field.default is not MISSING
}


def complete_definition(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Add the fields that a stored definition lacks."""
    return {**_POLICY_DEFAULTS, **stored}


@lru_cache(maxsize=16_384)
def parse_policy(document: str) -> SchedulePolicy:
    """Read a stored `definition`; raises ValueError if it is invalid."""
    return _POLICY.validate_json(document)


@lru_cache(maxsize=16_384)
def anchored_policy(document: str, anchor: datetime | None) -> SchedulePolicy:
    """Like `parse_policy`, with the grid of an interval fixed to where it began."""
    return parse_policy(document).anchored(anchor)


# Ids


def slot_id(schedule_name: str, slot: datetime) -> UUID:
    """The id of the task or run of a slot: a UUIDv7 of its time and a hash of name and slot, the same everywhere."""
    return UUID(slot_id_hex(schedule_name, slot))


def slot_id_hex(schedule_name: str, slot: datetime) -> str:
    """Like `slot_id`, as 32 digits, which takes half the time."""
    digits = _slot_digest(schedule_name, slot)[:10].hex()
    return f"{_slot_ms_hex(slot)}7{digits[:3]}{_VARIANT_DIGITS[digits[4]]}{digits[5:]}"


def jitter(schedule_name: str, slot: datetime, jitter_s: float) -> timedelta:
    """A delay from 0 to `jitter_s`, the same for every process that computes it."""
    fraction = int.from_bytes(_slot_digest(schedule_name, slot)[10:18], "big") / 2**64
    return timedelta(seconds=fraction * jitter_s)


def _slot_digest(schedule_name: str, slot: datetime) -> bytes:
    return sha256(f"{schedule_name}\0{format_slot(slot)}".encode()).digest()


_VARIANT_DIGITS: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
"""Each digit with its upper two bits replaced by those of the variant in RFC 9562."""


@lru_cache(maxsize=1024)
def _slot_ms_hex(slot: datetime) -> str:
    return f"{int(slot.timestamp() * 1000):012x}"


@lru_cache(maxsize=1024)
def format_slot(slot: datetime) -> str:
    """A slot as text, in UTC; cached, because many schedules are due at the same times."""
    return slot.astimezone(UTC).isoformat()


# Decisions


@dataclass(frozen=True, slots=True, kw_only=True)
class DueSchedule:
    """A schedule with due slots, as read under its lock. Schedules that are equal here get the same decisions."""

    policy: SchedulePolicy
    first_slot: datetime
    """The first slot without a decision."""
    last_fired_slot: datetime | None = None
    waiting_slot: datetime | None = None
    is_running: bool = False
    """Whether the task or run of an earlier slot has not ended."""
    failures: int = 0
    """Failed slots in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FireSlot:
    """Send the task or start the workflow run of a slot."""

    slot: datetime
    previous_slot: datetime | None
    good_until: datetime | None
    jitter_s: float | None = None
    """Start up to this much later, by the name of the schedule; None: at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipSlot:
    slot: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSlot:
    """Fire the slot when the earlier one has ended."""

    slot: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseSlot:
    """The slot cannot be sent, and trying again will not help."""

    slot: datetime
    reason: str


Decision = FireSlot | SkipSlot | WaitSlot | RefuseSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """What to do with the due slots of one schedule, oldest first."""

    decisions: tuple[Decision, ...] = ()
    next_slot: datetime | None = None
    """The first slot without a decision."""
    waiting_slot: datetime | None = None
    replaces_running: bool = False
    pause_reason: str | None = None
    has_more: bool = False
    """Whether due slots are left that must be decided at once; not those over `max_catch_up_runs`."""


def decide_slots(due: DueSchedule, now: datetime) -> SlotPlan:
    """Decide about the due slots of a schedule, at most `MAX_SLOTS` of them."""
    policy = due.policy
    if policy.pause_after_failures is not None and due.failures >= policy.pause_after_failures:
        reason = f"{due.failures} failed slots in a row"
        return SlotPlan(next_slot=due.first_slot, waiting_slot=due.waiting_slot, pause_reason=reason)
    slots, following = _due_slots(due, now)
    has_more = following is not None and following <= now
    unwanted = _missed_slots(policy, slots, now, has_more=has_more)
    wanted = [slot for slot in slots if slot not in unwanted]
    if policy.missed == "all" and len(wanted) > policy.max_catch_up_runs:
        following, has_more = wanted[policy.max_catch_up_runs], False
        slots = [slot for slot in slots if slot < following]
    choices = _Overlaps(due)
    for slot in slots:
        choices.skip(slot, unwanted[slot]) if slot in unwanted else choices.add(slot)
    return SlotPlan(
        decisions=tuple(choices.decisions),
        next_slot=following,
        waiting_slot=choices.waiting,
        replaces_running=choices.replaces_running,
        has_more=has_more,
    )


def _due_slots(due: DueSchedule, now: datetime) -> tuple[list[datetime], datetime | None]:
    """The due slots in order, and the slot after them."""
    slots: list[datetime] = []
    slot: datetime | None = due.first_slot
    while slot is not None and slot <= now and len(slots) < MAX_SLOTS:
        slots.append(slot)
        slot = due.policy.next_slot(slot)
    return slots, slot


def _missed_slots(
    policy: SchedulePolicy, slots: Sequence[datetime], now: datetime, *, has_more: bool
) -> dict[datetime, str]:
    """The slots that do not fire because they are too late, with the reason."""
    missed: dict[datetime, str] = {}
    for slot in slots:
        lateness = (now - slot).total_seconds()
        if policy.missed_within is not None and lateness > policy.missed_within:
            missed[slot] = "older than missed_within"
        elif policy.missed == "none" and lateness >= policy.grace:
            missed[slot] = "later than grace"
        elif policy.missed == "latest" and (has_more or slot != slots[-1]):
            missed[slot] = "missed; a later slot fires"
    return missed


class _Overlaps:
    """Applies the overlap policy to slots in order."""

    def __init__(self, due: DueSchedule) -> None:
        self._due = due
        self._is_running = due.is_running
        self._previous = due.last_fired_slot
        self.decisions: list[Decision] = []
        self.waiting = due.waiting_slot
        self.replaces_running = False
        if self.waiting is not None and not self._is_running:
            self._fire(self.waiting)
            self.waiting = None

    def skip(self, slot: datetime, reason: str) -> None:
        self.decisions.append(SkipSlot(slot=slot, reason=reason))

    def add(self, slot: datetime) -> None:
        overlap = self._due.policy.overlap
        if overlap == "allow" or not self._is_running:
            self._fire(slot)
        elif overlap == "replace":
            # One that fires with the same transaction has not started: it is left out instead of cancelled.
            self.replaces_running = self._due.is_running
            self.decisions = [_replaced(decision) for decision in self.decisions]
            self._fire(slot)
        elif overlap == "queue_one" and self.waiting is None:
            self.waiting = slot
            self.decisions.append(WaitSlot(slot=slot, reason="an earlier slot is running"))
        else:
            self.skip(slot, "an earlier slot is running")

    def _fire(self, slot: datetime) -> None:
        policy = self._due.policy
        self.decisions.append(
            FireSlot(
                slot=slot,
                previous_slot=self._previous,
                good_until=good_until(policy, slot),
                jitter_s=policy.jitter_s,
            )
        )
        self._is_running, self._previous = True, slot


def _replaced(decision: Decision) -> Decision:
    return (
        SkipSlot(slot=decision.slot, reason="replaced by a later slot") if isinstance(decision, FireSlot) else decision
    )


def good_until(policy: SchedulePolicy, slot: datetime) -> datetime | None:
    """Until when the task of a slot may start."""
    if policy.good_for == "next":
        return policy.next_slot(slot)
    return None if policy.good_for is None else slot + timedelta(seconds=float(policy.good_for))


# Definitions of an app


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDefinition:
    """A schedule as its app defines it: the policy, and the encoded call as JSON text."""

    name: str
    policy: SchedulePolicy
    call: str
    enabled: bool = True
    source: str = "code"

    @property
    def config_hash(self) -> str:
        document = f"{self.policy.to_json()}\0{self.call}\0{self.enabled}"
        return sha256(document.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSchedule:
    """The stored state of a schedule, as far as a sync needs it."""

    schedule_name: str
    owner: str
    source: str
    state: ScheduleState
    definition: str
    config_hash: str
    old_hashes: Sequence[str]
    revision: int
    next_run_at: datetime | None
    anchor_at: datetime | None
    tz_version: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleChange:
    """A schedule to insert or update."""

    definition: ScheduleDefinition
    config_hash: str
    revision: int
    state: ScheduleState
    next_run_at: datetime | None
    anchor_at: datetime | None
    note: str = ""
    """The message for operators; empty if there is none."""


class Superseded(Exception):
    """The definition was replaced by a newer one, which stays."""


def sync_change(
    wanted: ScheduleDefinition, stored: StoredSchedule | None, now: datetime, *, tz_version: str, force: bool = False
) -> ScheduleChange | None:
    """Return how a definition changes the stored schedule, None if not at all; raises Superseded.

    A change never fires at once: a new or re-enabled schedule and one with another pattern start at the first slot
    after `now`. All other changes keep the next slot. `force` brings a superseded definition back.
    """
    state = ScheduleState.ACTIVE if wanted.enabled else ScheduleState.DISABLED
    config_hash = wanted.config_hash
    if stored is None:
        if state is ScheduleState.DISABLED:
            return None
        return _restarted(wanted, config_hash, 1, now)
    if config_hash in stored.old_hashes and config_hash != stored.config_hash and not force:
        raise Superseded(wanted.name)
    is_changed = config_hash != stored.config_hash
    revision = stored.revision + is_changed
    if state is ScheduleState.ACTIVE and stored.state is not ScheduleState.ACTIVE:
        return replace(_restarted(wanted, config_hash, revision, now), note="activated again")
    before = parse_policy(stored.definition)
    if is_changed and not wanted.policy.has_same_times(before):
        change = _restarted(wanted, config_hash, revision, now)
        return replace(change, state=state, note="its times have changed; it continues with the first slot after now")
    next_run_at = stored.next_run_at
    has_newer_zones = stored.tz_version is None or stored.tz_version < tz_version
    if has_newer_zones and next_run_at is not None and next_run_at > now:
        next_run_at = wanted.policy.anchored(stored.anchor_at).next_slot(now)
    if not is_changed and stored.state is state and not (has_newer_zones and next_run_at != stored.next_run_at):
        return None
    return ScheduleChange(
        definition=wanted,
        config_hash=config_hash,
        revision=revision,
        state=state,
        next_run_at=next_run_at,
        anchor_at=stored.anchor_at,
    )


def _restarted(wanted: ScheduleDefinition, config_hash: str, revision: int, now: datetime) -> ScheduleChange:
    return ScheduleChange(
        definition=wanted,
        config_hash=config_hash,
        revision=revision,
        state=ScheduleState.ACTIVE,
        next_run_at=wanted.policy.anchored(now).next_slot(now),
        anchor_at=now,
    )


def describe_pattern(pattern: SchedulePattern) -> str:
    """Describe a pattern in a few words: `daily 02:30`, `every 90 s`, or its cron expression."""
    table: dict[str, Any] = pattern.to_table()
    match table:
        case {"type": "interval"}:
            units = [(table[unit], unit) for unit in ("days", "hours", "minutes", "seconds") if unit in table]
            parts = (f"{count} {unit.removesuffix('s') if count == 1 else unit}" for count, unit in units)
            return f"every {' '.join(parts)}"
        case {"type": "hourly"}:
            return f"hourly at :{table['minute']:02}" + (f":{table['second']:02}" if table["second"] else "")
        case {"type": "weekly"}:
            return f"{', '.join(day[:3] for day in table['days'])} {_clock(table)}"
        case {"type": "monthly"}:
            return f"monthly on day {table['day']} {_clock(table)}"
        case {"type": "daily"}:
            return f"daily {_clock(table)}"
        case _:
            return str(table.get("expression", ""))


def _clock(table: dict[str, Any]) -> str:
    return str(table["time"]).removesuffix(":00")
