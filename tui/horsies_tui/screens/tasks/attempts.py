"""The attempts of a task to one scale of time: a gap between beats is seen before it is a number."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby, pairwise
from statistics import median_low
from typing import TYPE_CHECKING, Final

from textual.content import Content

from horsies.model.task import TaskStatus
from horsies_ops.reads.tasks import NEWEST_SHOWN
from horsies_tui.format import age, clock, fit, safe, short_id, took

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from horsies_ops.reads.tasks import AttemptRow, TaskDetail
    from horsies_tui.theme import Glyphs


USUAL_INTERVAL: Final = timedelta(seconds=30)
LEAST_INTERVAL: Final = timedelta(seconds=1)
MISSED: Final = 2
"""So many intervals without a beat are a silence; one alone may be late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One attempt, from its claim or start until its end, or until now."""

    attempt: int
    worker_id: UUID | None
    began: datetime
    started: datetime | None
    """None while it is only claimed."""
    ended: datetime
    beats: tuple[datetime, ...]
    """The oldest first."""
    status: str
    error_code: str | None = None
    is_live: bool = False
    stale_at: datetime | None = None
    """When its silence became, or becomes, too long."""

    @property
    def is_stale(self) -> bool:
        return self.is_live and self.stale_at is not None and self.stale_at < self.ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A cell stands for one interval between beats, or for more where that many would not fit."""

    begins: datetime
    cell: timedelta
    width: int
    interval: timedelta
    known_since: datetime | None = None
    """What was before is not drawn as silence: those beats were not read."""

    @property
    def ends(self) -> datetime:
        return self.begins + self.cell * self.width


def lanes_of(detail: TaskDetail, now: datetime) -> tuple[Lane, ...]:
    """The attempts in the order in which they were made; last the one under way."""
    ended = [_ended(attempt, detail) for attempt in reversed(detail.attempts)]
    live = _live(detail, now)
    return (*ended, live) if live is not None else tuple(ended)


def scale_for(lanes: Sequence[Lane], detail: TaskDetail, *, most: int) -> Scale:
    """How much time a cell stands for, so that all of these fit into `most` cells."""
    begins, ends = min(lane.began for lane in lanes), max(lane.ended for lane in lanes)
    interval = _interval(lanes)
    cell = max(interval, (ends - begins) / most)
    width = min(int((ends - begins) / cell) + 1, most)
    is_cut = len(detail.beats) >= NEWEST_SHOWN
    return Scale(
        begins=begins,
        cell=cell,
        width=width,
        interval=interval,
        known_since=detail.beats[-1].at if is_cut else None,
    )


def drawn(lane: Lane, scale: Scale, signs: Glyphs) -> str:
    """The lane as one sign a cell."""
    silences = _silences(lane, scale)
    edges = [scale.begins + scale.cell * index for index in range(scale.width + 1)]
    # What falls on the last edge belongs to the last cell; a cell was rounded, so the edge may fall short.
    edges[-1] = max(edges[-1], lane.ended) + timedelta.resolution
    return "".join(_sign(lane, scale, silences, begin, end, signs) for begin, end in pairwise(edges))


def _sign(
    lane: Lane,
    scale: Scale,
    silences: Sequence[tuple[datetime, datetime]],
    begin: datetime,
    end: datetime,
    signs: Glyphs,
) -> str:
    if end <= lane.began or begin > lane.ended:
        return " "
    if begin <= lane.ended < end:
        return _end_sign(lane, signs)
    if begin <= lane.began:
        return signs.start
    if lane.is_stale and lane.stale_at is not None and begin <= lane.stale_at < end:
        return signs.limit
    if (scale.known_since is not None and end <= scale.known_since) or not (lane.is_live or lane.beats):
        return signs.rule
    if any(_overlap(silence, begin, end) > scale.cell / 2 for silence in silences):
        return signs.silence
    return signs.claim if lane.started is None or end <= lane.started else signs.beat


def _end_sign(lane: Lane, signs: Glyphs) -> str:
    if lane.is_live:
        return signs.unknown if lane.is_stale else signs.running
    return signs.done if lane.status == TaskStatus.COMPLETED else signs.bad


def _silences(lane: Lane, scale: Scale) -> list[tuple[datetime, datetime]]:
    known_since = scale.known_since or lane.began
    points = (max(lane.started or lane.began, known_since), *lane.beats, lane.ended)
    return [(last, following) for last, following in pairwise(points) if following - last > MISSED * scale.interval]


def _overlap(silence: tuple[datetime, datetime], begin: datetime, end: datetime) -> timedelta:
    return min(silence[1], end) - max(silence[0], begin)


def _interval(lanes: Sequence[Lane]) -> timedelta:
    gaps = [following - last for lane in lanes for last, following in pairwise(lane.beats)]
    return max(median_low(gaps), LEAST_INTERVAL) if gaps else USUAL_INTERVAL


def _ended(attempt: AttemptRow, detail: TaskDetail) -> Lane:
    return Lane(
        attempt=attempt.attempt,
        worker_id=attempt.worker_id,
        began=attempt.started_at,
        started=attempt.started_at,
        ended=attempt.finished_at,
        beats=_beats(detail, attempt.claim_token, "runner"),
        status=attempt.outcome,
        error_code=attempt.error_code,
    )


def _live(detail: TaskDetail, now: datetime) -> Lane | None:
    task = detail.task
    is_running = task.status == TaskStatus.RUNNING
    began = task.claimed_at or task.started_at
    if began is None or (not is_running and task.status != TaskStatus.CLAIMED):
        return None
    limit = detail.verdict.threshold if detail.verdict is not None else None
    last_beat_at = task.last_beat_at or began
    return Lane(
        attempt=task.attempt_count + 1,
        worker_id=task.worker_id,
        began=began,
        started=task.started_at if is_running else None,
        ended=max(now, began),
        beats=_beats(detail, task.claim_token, "runner" if is_running else "claimer"),
        status=task.status,
        is_live=True,
        stale_at=None if limit is None else last_beat_at + limit,
    )


def _beats(detail: TaskDetail, token: int, role: str) -> tuple[datetime, ...]:
    return tuple(beat.at for beat in reversed(detail.beats) if beat.claim_token == token and beat.role == role)


# Attempts and heartbeats of a task, drawn to scale.

MOST_LANES: Final = 12
LABEL: Final = 12
SAID: Final = 26
LEAST: Final = 10


def strip(detail: TaskDetail, now: datetime, *, width: int, signs: Glyphs) -> list[Content]:
    """A line for each of the last attempts, an axis above them and what the signs mean below."""
    lanes = lanes_of(detail, now)
    if not lanes:
        return [safe("not yet begun", "$text-muted")]
    shown = lanes[-MOST_LANES:]
    scale = scale_for(shown, detail, most=max(width - LABEL - SAID, LEAST))
    left_out = len(lanes) - len(shown)
    earlier = [safe(f"{left_out} earlier attempts are not drawn", "$text-muted")] if left_out else []
    return [
        *earlier,
        _axis(scale, is_live=shown[-1].is_live),
        *(_line(lane, scale, signs, shown[-1].attempt) for lane in shown),
        _legend(shown[-1], scale, signs),
    ]


def _axis(scale: Scale, *, is_live: bool) -> Content:
    begins, ends = clock(scale.begins), "now" if is_live else clock(scale.ends)
    return safe(f"{'':{LABEL}}{begins} {ends:>{max(scale.width - len(begins) - 1, 0)}}", "$text-muted")


def _line(lane: Lane, scale: Scale, signs: Glyphs, last: int) -> Content:
    number = fit(lane.attempt, max(len(str(last)), 2), right=True)
    label = fit(f"{number} {short_id(lane.worker_id)}", LABEL)
    span = age(lane.ended - lane.began) if lane.is_live else took(lane.ended - lane.began)
    said = safe(f" {lane.status} {span} {lane.error_code or ''}", _tone(lane), cells=SAID)
    return Content.assemble(label, *_coloured(drawn(lane, scale, signs), signs), said)


def _coloured(cells: str, signs: Glyphs) -> list[Content]:
    colours = {
        signs.silence: "$text-warning",
        signs.limit: "bold $text-error",
        signs.unknown: "bold $text-error",
        signs.bad: "$text-error",
        signs.beat: "$text-success",
        signs.done: "$text-success",
    }
    return [Content.styled("".join(run), colours.get(sign, "$text-muted")) for sign, run in groupby(cells)]


def _tone(lane: Lane) -> str:
    if lane.is_live:
        return "$text-error" if lane.is_stale else "$text-primary"
    return "$text-error" if lane.error_code else "$text-success"


def _legend(last: Lane, scale: Scale, signs: Glyphs) -> Content:
    parts = [f"{signs.claim} claim", f"{signs.beat} beat ({age(scale.interval)})", f"{signs.silence} silence"]
    if last.is_stale:
        parts.append(f"{signs.limit} stale since {clock(last.stale_at)}")
    if scale.known_since is not None:
        parts.append(f"{signs.rule} not read")
    return safe("   " + "  ".join(parts), "$text-muted")
