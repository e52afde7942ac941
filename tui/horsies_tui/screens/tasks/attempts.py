"""Chart of a task's attempts and heartbeats, drawn to scale so that gaps between heartbeats are visible."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise
from statistics import median_low
from typing import Final
from uuid import UUID

from textual.content import Content

from horsies.model.task import TaskAttemptInfo, TaskStatus
from horsies_ops.reads.tasks import MAX_DETAIL_ROWS, TaskDetail
from horsies_tui.format import fit, format_age, format_elapsed, format_time, safe, short_id
from horsies_tui.theme import Glyph

DEFAULT_INTERVAL: Final = timedelta(seconds=30)
MIN_INTERVAL: Final = timedelta(seconds=1)
MIN_CELL_DURATION: Final = timedelta(milliseconds=1)
SILENT_INTERVALS: Final = 2
"""A gap longer than this many heartbeat intervals is drawn as silence; a single heartbeat may be late."""

MAX_ATTEMPTS: Final = 12
LABEL_WIDTH: Final = 12
MAX_OUTCOME_WIDTH: Final = 26
MIN_CHART_WIDTH: Final = 10
MIN_TICK_CELLS: Final = 12
"""Cells between two ticks of the time axis: room for a time and some rule."""
TICK_STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSpan:
    """One attempt, from its claim or start until its end or now."""

    attempt: int
    worker_id: UUID | str | None
    begins_at: datetime
    started_at: datetime | None
    """None while the task is claimed but not started."""
    ends_at: datetime
    heartbeats: tuple[datetime, ...]
    """Oldest first."""
    status: str
    error_code: str | None = None
    is_live: bool = False
    stale_at: datetime | None = None
    """When the current silence reaches the stale threshold."""

    @property
    def is_stale(self) -> bool:
        return self.is_live and self.stale_at is not None and self.stale_at < self.ends_at


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeScale:
    """The time axis, from the first attempt to the end of the last one or now."""

    begins_at: datetime
    cell_duration: timedelta
    width: int
    observed_interval: timedelta | None = None
    """The usual time between two heartbeats; none if no attempt has two."""
    known_since: datetime | None = None
    """Earlier heartbeats were not read, so gaps before this are not drawn as silence."""

    @property
    def ends_at(self) -> datetime:
        return self.begins_at + self.cell_duration * self.width

    @property
    def heartbeat_interval(self) -> timedelta:
        return self.observed_interval or DEFAULT_INTERVAL

    @property
    def cell_s(self) -> float:
        return self.cell_duration.total_seconds()


# The chart as lines of text


def attempt_chart(detail: TaskDetail, now: datetime, *, width: int) -> list[Content]:
    """Return a time axis, one line for each of the last attempts, and a legend."""
    spans = attempt_spans(detail, now)
    if not spans:
        return [safe("no attempts yet", "dim")]
    shown = spans[-MAX_ATTEMPTS:]
    last = shown[-1]
    outcomes = [_outcome(span) for span in shown]
    chart_width = width - LABEL_WIDTH - max(outcome.cell_length for outcome in outcomes)
    scale = fit_time_scale(shown, detail, width=max(chart_width, MIN_CHART_WIDTH))
    omitted = len(spans) - len(shown)
    return [
        *([safe(f"{omitted} earlier attempts not shown", "dim")] if omitted else []),
        safe(f"{'':{LABEL_WIDTH}}{time_axis(scale, is_live=last.is_live)}", "dim"),
        *(_attempt_line(span, scale, last.attempt) + outcome for span, outcome in zip(shown, outcomes, strict=True)),
        _legend(last, scale),
    ]


def time_axis(scale: TimeScale, *, is_live: bool) -> str:
    """Return a rule with ticks at round times between the begin and the end."""
    end = f"{Glyph.RULE} now" if is_live else f"{Glyph.RULE} {format_time(scale.ends_at)}"
    step_s = next((step for step in TICK_STEPS_S if step >= MIN_TICK_CELLS * scale.cell_s), TICK_STEPS_S[-1])
    axis, begins_s = f"{Glyph.TICK} {format_time(scale.begins_at)} ", scale.begins_at.timestamp()
    tick_s = begins_s - begins_s % step_s + step_s
    while (x := int((tick_s - begins_s) / scale.cell_s)) < scale.width - len(end):
        label = format_time(datetime.fromtimestamp(tick_s, UTC))
        tick = f"{Glyph.TICK} {label if step_s < 60 else label[:-3]} "
        if len(axis) < x < scale.width - len(end) - len(tick):
            axis = f"{axis:{Glyph.RULE}<{x}}{tick}"
        tick_s += step_s
    return f"{axis:{Glyph.RULE}<{scale.width - len(end)}}{end}"


def _attempt_line(span: AttemptSpan, scale: TimeScale, last_attempt: int) -> Content:
    number = fit(span.attempt, max(len(str(last_attempt)), 2), right=True)
    label = fit(f"{number} {short_id(span.worker_id)}", LABEL_WIDTH)
    return Content.assemble(label, *_colour_cells(draw_span(span, scale)))


def _outcome(span: AttemptSpan) -> Content:
    elapsed = span.ends_at - span.begins_at
    duration = format_age(elapsed) if span.is_live else format_elapsed(elapsed)
    is_bad = span.is_stale if span.is_live else bool(span.error_code)
    tone = "$text-error" if is_bad else "$text-primary" if span.is_live else "$text-success"
    return safe(f" {span.status} {duration} {span.error_code or ''}".rstrip(), tone, cells=MAX_OUTCOME_WIDTH)


def _colour_cells(cells: str) -> list[Content]:
    colours = {
        Glyph.SILENCE: "$text-warning",
        Glyph.LIMIT: "bold $text-error",
        Glyph.UNKNOWN: "bold $text-error",
        Glyph.BAD: "$text-error",
        Glyph.HEARTBEAT: "$text-success",
        Glyph.DONE: "$text-success",
    }
    return [Content.styled("".join(run), colours.get(sign, "dim")) for sign, run in groupby(cells)]


def _legend(last: AttemptSpan, scale: TimeScale) -> Content:
    interval = f" ({format_age(scale.observed_interval)})" if scale.observed_interval else ""
    parts = [
        f"{Glyph.CLAIM} claim",
        f"{Glyph.HEARTBEAT} heartbeat{interval}",
        f"{Glyph.SILENCE} silence",
    ]
    if last.is_stale:
        parts.append(f"{Glyph.LIMIT} stale since {format_time(last.stale_at)}")
    if scale.known_since is not None:
        parts.append(f"{Glyph.NOT_LOADED} not loaded")
    return safe("   " + "  ".join(parts), "dim")


# Drawing one attempt


def fit_time_scale(spans: Sequence[AttemptSpan], detail: TaskDetail, *, width: int) -> TimeScale:
    """Choose the cell duration so that the spans fill `width` cells."""
    begins, ends = min(span.begins_at for span in spans), max(span.ends_at for span in spans)
    gaps = [following - previous for span in spans for previous, following in pairwise(span.heartbeats)]
    is_truncated = len(detail.heartbeats) >= MAX_DETAIL_ROWS
    return TimeScale(
        begins_at=begins,
        cell_duration=max((ends - begins) / width, MIN_CELL_DURATION),
        width=width,
        # The median: a few long silences do not change it.
        observed_interval=max(median_low(gaps), MIN_INTERVAL) if gaps else None,
        # Newest first, so the last one is the oldest that was read.
        known_since=detail.heartbeats[-1].at if is_truncated else None,
    )


def draw_span(span: AttemptSpan, scale: TimeScale) -> str:
    """Return one glyph per cell of the time scale."""
    known_since = scale.known_since or span.begins_at
    points = (max(span.started_at or span.begins_at, known_since), *span.heartbeats, span.ends_at)
    max_gap = SILENT_INTERVALS * scale.heartbeat_interval
    silences = [(since, until) for since, until in pairwise(points) if until - since > max_gap]
    edges = [scale.begins_at + scale.cell_duration * index for index in range(scale.width + 1)]
    # An instant on the last edge belongs to the last cell; rounding may leave that edge before the end.
    edges[-1] = max(edges[-1], span.ends_at) + timedelta.resolution
    return "".join(_cell_glyph(span, scale, silences, begin, end) for begin, end in pairwise(edges))


def _cell_glyph(
    span: AttemptSpan,
    scale: TimeScale,
    silences: Sequence[tuple[datetime, datetime]],
    begin: datetime,
    end: datetime,
) -> str:
    # A cell may cover several of these; the most important comes first.
    if end <= span.begins_at or begin > span.ends_at:
        return " "
    if begin <= span.ends_at < end:
        return _end_glyph(span)
    if begin <= span.begins_at:
        return Glyph.START
    if span.is_stale and span.stale_at is not None and begin <= span.stale_at < end:
        return Glyph.LIMIT
    if scale.known_since is not None and end <= scale.known_since:
        return Glyph.NOT_LOADED
    following = bisect_left(span.heartbeats, begin)
    has_heartbeat = following < len(span.heartbeats) and span.heartbeats[following] < end
    # A cell shorter than an interval shows each heartbeat; a longer one covers several and shows a silence among them.
    if has_heartbeat and scale.cell_duration <= scale.heartbeat_interval:
        return Glyph.HEARTBEAT
    # No silence if a finished attempt has no heartbeats at all: it was too short, or they were deleted.
    is_known = span.is_live or bool(span.heartbeats)
    if is_known and any(min(until, end) - max(since, begin) > scale.cell_duration / 2 for since, until in silences):
        return Glyph.SILENCE
    if span.started_at is None or end <= span.started_at:
        return Glyph.CLAIM
    return Glyph.HEARTBEAT if has_heartbeat else Glyph.RULE


def _end_glyph(span: AttemptSpan) -> str:
    if span.is_live:
        return Glyph.UNKNOWN if span.is_stale else Glyph.RUNNING
    return Glyph.DONE if span.status == TaskStatus.COMPLETED else Glyph.BAD


# Attempts of a task


def attempt_spans(detail: TaskDetail, now: datetime) -> tuple[AttemptSpan, ...]:
    """Return all attempts in order; the last one may still be live."""
    finished = [_finished_span(attempt, detail) for attempt in reversed(detail.attempts)]
    live = _live_span(detail, now)
    return (*finished, live) if live is not None else tuple(finished)


def _finished_span(attempt: TaskAttemptInfo, detail: TaskDetail) -> AttemptSpan:
    return AttemptSpan(
        attempt=attempt.attempt,
        worker_id=attempt.worker_id,
        begins_at=attempt.started_at,
        started_at=attempt.started_at,
        ends_at=attempt.finished_at,
        heartbeats=_heartbeats(detail, attempt.claim_token, "runner"),
        status=attempt.outcome,
        error_code=attempt.error_code,
    )


def _live_span(detail: TaskDetail, now: datetime) -> AttemptSpan | None:
    task = detail.task
    is_running = task.status == TaskStatus.RUNNING
    began = task.claimed_at or task.started_at
    if began is None or (not is_running and task.status != TaskStatus.CLAIMED):
        return None
    threshold = detail.recovery_decision.effective_threshold if detail.recovery_decision is not None else None
    last_heartbeat_at = task.last_heartbeat_at or began
    return AttemptSpan(
        attempt=task.attempt_count + 1,
        worker_id=task.worker_id,
        begins_at=began,
        started_at=task.started_at if is_running else None,
        # The clock offset is measured: `now` may lie slightly before the claim.
        ends_at=max(now, began),
        heartbeats=_heartbeats(detail, task.claim_token, "runner" if is_running else "claimer"),
        status=task.status,
        is_live=True,
        stale_at=None if threshold is None else last_heartbeat_at + threshold,
    )


def _heartbeats(detail: TaskDetail, token: int, role: str) -> tuple[datetime, ...]:
    return tuple(beat.at for beat in reversed(detail.heartbeats) if beat.claim_token == token and beat.role == role)
