"""Attempts and heartbeats of a task, drawn to scale."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from textual.content import Content

from horsies_tui.format import age, clock, fit, safe, short_id, took
from horsies_tui.lanes import Lane, Scale, drawn, lanes_of, scale_for

if TYPE_CHECKING:
    from datetime import datetime

    from horsies_ops.reads.tasks import TaskDetail
    from horsies_tui.glyphs import Glyphs

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
