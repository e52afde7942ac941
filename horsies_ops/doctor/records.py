"""Checks of what should have been moved on or cleaned away by now."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

import humanize

from horsies.model.retention import Category, Windows
from horsies_ops.doctor.findings import Finding, fail, ok, warn
from horsies_ops.reads.diagnosis import oldest, outbox

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horsies_ops.doctor.patient import Patient
    from horsies_ops.reads.diagnosis import Outbox

LONGEST_WAIT: Final = timedelta(minutes=5)


async def waiting_outcomes(patient: Patient) -> Finding:
    return judge_outbox(await outbox(patient.reads.reading))


def judge_outbox(found: Outbox) -> Finding:
    detail = f"{found.waiting} waiting, {found.quarantined} quarantined"
    if found.quarantined:
        hint = "horsies events --kind outbox_quarantined shows why; they are tried again every hour"
        return fail(detail, hint=hint)
    if found.oldest is not None and found.oldest > LONGEST_WAIT:
        hint = "workflows are not advanced: is a worker running that knows them?"
        return warn(f"{detail}, the oldest for {humanize.naturaldelta(found.oldest)}", hint=hint)
    return ok(detail)


async def retention(patient: Patient) -> Finding:
    settings = patient.settings
    windows = Windows.of(settings.recovery, settings.retention)
    # Two passes, for one may have ended with its time over.
    slack = timedelta(seconds=2 * settings.retention.interval_s)
    return judge_retention(await oldest(patient.reads.reading), windows, slack)


def judge_retention(ages: Mapping[str, timedelta], windows: Windows, slack: timedelta) -> Finding:
    overdue = {
        category: late
        for category, window in windows
        if window is not None and (late := ages.get(category, timedelta()) - window) > slack
    }
    if not overdue:
        return ok(_kept(windows))
    detail = ", ".join(f"{_words(category)} by {humanize.naturaldelta(late)}" for category, late in overdue.items())
    return warn(f"past their window: {detail}", hint="horsies cleanup; a live worker does it every hour")


def _kept(windows: Windows) -> str:
    endless = [_words(category) for category, window in windows if window is None]
    return "nothing is past its window" + (f"; kept for ever: {', '.join(endless)}" if endless else "")


def _words(category: Category) -> str:
    return category.replace("_", " ")
