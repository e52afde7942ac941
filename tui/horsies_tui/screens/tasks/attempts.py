"""The attempts of a task to one scale of time: a gap between beats is seen before it is a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from statistics import median_low
from typing import Final
from uuid import UUID

from textual.content import Content

from horsies.model.task import TaskStatus
from horsies_ops.reads.tasks import MAX_DETAIL_ROWS, AttemptRow, TaskDetail
from horsies_tui.format import fit, format_age, format_elapsed, format_time, safe, short_id
from horsies_tui.theme import Glyphs

DEFAULT_INTERVAL: Final = timedelta(seconds=30)
MIN_INTERVAL: Final = timedelta(seconds=1)
MISSED_BEATS: Final = 2
"""So many intervals without a beat are a silence; one alone may be late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSpan:
    """One attempt, from its claim or start until its end, or until now."""

    attempt: int
    worker_id: UUID | None
    begins_at: datetime
    started_at: datetime | None
    """None while it is only claimed."""
    ends_at: datetime
    beats: tuple[datetime, ...]
    """The oldest first."""
    status: str
    error_code: str | None = None
    is_live: bool = False
    stale_at: datetime | None = None
    """When its silence became, or becomes, too long."""

    @property
    def is_stale(self) -> bool:
        return self.is_live and self.stale_at is not None and self.stale_at < self.ends_at


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeScale:
    """A cell stands for one interval between beats, or for more where that many would not fit."""

    begins_at: datetime
    cell_duration: timedelta
    width: int
    beat_interval: timedelta
    known_since: datetime | None = None
    """What was before is not drawn as silence: those beats were not read."""

    @property
    def ends_at(self) -> datetime:
        return self.begins_at + self.cell_duration * self.width


def attempt_spans(detail: TaskDetail, now: datetime) -> tuple[AttemptSpan, ...]:
    """The attempts in the order in which they were made; last the one under way."""
    ended = [_finished_span(attempt, detail) for attempt in reversed(detail.attempts)]
    live = _live_span(detail, now)
    return (*ended, live) if live is not None else tuple(ended)


def fit_time_scale(spans: Sequence[AttemptSpan], detail: TaskDetail, *, max_width: int) -> TimeScale:
    """How much time a cell stands for, so that all of these fit into `most` cells."""
    begins, ends = min(lane.begins_at for lane in spans), max(lane.ends_at for lane in spans)
    interval = _interval(spans)
    cell = max(interval, (ends - begins) / max_width)
    width = min(int((ends - begins) / cell) + 1, max_width)
    is_cut = len(detail.heartbeats) >= MAX_DETAIL_ROWS
    return TimeScale(
        begins_at=begins,
        cell_duration=cell,
        width=width,
        beat_interval=interval,
        known_since=detail.heartbeats[-1].at if is_cut else None,
    )


def draw_span(attempt_span: AttemptSpan, scale: TimeScale, glyphs: Glyphs) -> str:
    """The lane as one sign a cell."""
    silences = _silences(attempt_span, scale)
    edges = [scale.begins_at + scale.cell_duration * index for index in range(scale.width + 1)]
    # What falls on the last edge belongs to the last cell; a cell was rounded, so the edge may fall short.
    edges[-1] = max(edges[-1], attempt_span.ends_at) + timedelta.resolution
    return "".join(_sign(attempt_span, scale, silences, begin, end, glyphs) for begin, end in pairwise(edges))


def _sign(
    attempt_span: AttemptSpan,
    scale: TimeScale,
    silences: Sequence[tuple[datetime, datetime]],
    begin: datetime,
    end: datetime,
    glyphs: Glyphs,
) -> str:
    if end <= attempt_span.begins_at or begin > attempt_span.ends_at:
        return " "
    if begin <= attempt_span.ends_at < end:
        return _end_sign(attempt_span, glyphs)
    if begin <= attempt_span.begins_at:
        return glyphs.start
    if attempt_span.is_stale and attempt_span.stale_at is not None and begin <= attempt_span.stale_at < end:
        return glyphs.limit
    if (scale.known_since is not None and end <= scale.known_since) or not (attempt_span.is_live or attempt_span.beats):
        return glyphs.rule
    if any(_overlap(silence, begin, end) > scale.cell_duration / 2 for silence in silences):
        return glyphs.silence
    return glyphs.claim if attempt_span.started_at is None or end <= attempt_span.started_at else glyphs.beat


def _end_sign(attempt_span: AttemptSpan, glyphs: Glyphs) -> str:
    if attempt_span.is_live:
        return glyphs.unknown if attempt_span.is_stale else glyphs.running
    return glyphs.done if attempt_span.status == TaskStatus.COMPLETED else glyphs.bad


def _silences(attempt_span: AttemptSpan, scale: TimeScale) -> list[tuple[datetime, datetime]]:
    known_since = scale.known_since or attempt_span.begins_at
    points = (
        max(attempt_span.started_at or attempt_span.begins_at, known_since),
        *attempt_span.beats,
        attempt_span.ends_at,
    )
    return [
        (last, following)
        for last, following in pairwise(points)
        if following - last > MISSED_BEATS * scale.beat_interval
    ]


def _overlap(silence: tuple[datetime, datetime], begin: datetime, end: datetime) -> timedelta:
    return min(silence[1], end) - max(silence[0], begin)


def _interval(spans: Sequence[AttemptSpan]) -> timedelta:
    gaps = [following - last for lane in spans for last, following in pairwise(lane.beats)]
    return max(median_low(gaps), MIN_INTERVAL) if gaps else DEFAULT_INTERVAL


def _finished_span(attempt: AttemptRow, detail: TaskDetail) -> AttemptSpan:
    return AttemptSpan(
        attempt=attempt.attempt,
        worker_id=attempt.worker_id,
        begins_at=attempt.started_at,
        started_at=attempt.started_at,
        ends_at=attempt.finished_at,
        beats=_beats(detail, attempt.claim_token, "runner"),
        status=attempt.outcome,
        error_code=attempt.error_code,
    )


def _live_span(detail: TaskDetail, now: datetime) -> AttemptSpan | None:
    task = detail.task
    is_running = task.status == TaskStatus.RUNNING
    began = task.claimed_at or task.started_at
    if began is None or (not is_running and task.status != TaskStatus.CLAIMED):
        return None
    limit = detail.recovery_decision.threshold if detail.recovery_decision is not None else None
    last_heartbeat_at = task.last_heartbeat_at or began
    return AttemptSpan(
        attempt=task.attempt_count + 1,
        worker_id=task.worker_id,
        begins_at=began,
        started_at=task.started_at if is_running else None,
        ends_at=max(now, began),
        beats=_beats(detail, task.claim_token, "runner" if is_running else "claimer"),
        status=task.status,
        is_live=True,
        stale_at=None if limit is None else last_heartbeat_at + limit,
    )


def _beats(detail: TaskDetail, token: int, role: str) -> tuple[datetime, ...]:
    return tuple(beat.at for beat in reversed(detail.heartbeats) if beat.claim_token == token and beat.role == role)


# Attempts and heartbeats of a task, drawn to scale.

MAX_ATTEMPTS: Final = 12
LABEL_WIDTH: Final = 12
OUTCOME_WIDTH: Final = 26
MIN_CHART_WIDTH: Final = 10


def attempt_chart(detail: TaskDetail, now: datetime, *, width: int, glyphs: Glyphs) -> list[Content]:
    """A line for each of the last attempts, an axis above them and what the signs mean below."""
    lanes = attempt_spans(detail, now)
    if not lanes:
        return [safe("not yet begun", "$text-muted")]
    shown = lanes[-MAX_ATTEMPTS:]
    scale = fit_time_scale(shown, detail, max_width=max(width - LABEL_WIDTH - OUTCOME_WIDTH, MIN_CHART_WIDTH))
    left_out = len(lanes) - len(shown)
    earlier = [safe(f"{left_out} earlier attempts are not drawn", "$text-muted")] if left_out else []
    return [
        *earlier,
        _axis(scale, is_live=shown[-1].is_live),
        *(_line(lane, scale, glyphs, shown[-1].attempt) for lane in shown),
        _legend(shown[-1], scale, glyphs),
    ]


def _axis(scale: TimeScale, *, is_live: bool) -> Content:
    begins, ends = format_time(scale.begins_at), "now" if is_live else format_time(scale.ends_at)
    return safe(f"{'':{LABEL_WIDTH}}{begins} {ends:>{max(scale.width - len(begins) - 1, 0)}}", "$text-muted")


def _line(attempt_span: AttemptSpan, scale: TimeScale, glyphs: Glyphs, last: int) -> Content:
    number = fit(attempt_span.attempt, max(len(str(last)), 2), right=True)
    label = fit(f"{number} {short_id(attempt_span.worker_id)}", LABEL_WIDTH)
    span = (
        format_age(attempt_span.ends_at - attempt_span.begins_at)
        if attempt_span.is_live
        else format_elapsed(attempt_span.ends_at - attempt_span.begins_at)
    )
    said = safe(
        f" {attempt_span.status} {span} {attempt_span.error_code or ''}", _tone(attempt_span), cells=OUTCOME_WIDTH
    )
    return Content.assemble(label, *_coloured(draw_span(attempt_span, scale, glyphs), glyphs), said)


def _coloured(cells: str, glyphs: Glyphs) -> list[Content]:
    colours = {
        glyphs.silence: "$text-warning",
        glyphs.limit: "bold $text-error",
        glyphs.unknown: "bold $text-error",
        glyphs.bad: "$text-error",
        glyphs.beat: "$text-success",
        glyphs.done: "$text-success",
    }
    return [Content.styled("".join(run), colours.get(sign, "$text-muted")) for sign, run in groupby(cells)]


def _tone(attempt_span: AttemptSpan) -> str:
    if attempt_span.is_live:
        return "$text-error" if attempt_span.is_stale else "$text-primary"
    return "$text-error" if attempt_span.error_code else "$text-success"


def _legend(last: AttemptSpan, scale: TimeScale, glyphs: Glyphs) -> Content:
    parts = [
        f"{glyphs.claim} claim",
        f"{glyphs.beat} beat ({format_age(scale.beat_interval)})",
        f"{glyphs.silence} silence",
    ]
    if last.is_stale:
        parts.append(f"{glyphs.limit} stale since {format_time(last.stale_at)}")
    if scale.known_since is not None:
        parts.append(f"{glyphs.rule} not read")
    return safe("   " + "  ".join(parts), "$text-muted")
