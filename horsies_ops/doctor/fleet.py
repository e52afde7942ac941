"""Checks of the workers and of the work in their hands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.model.ids import short_form
from horsies.model.recovery.published import disagreements
from horsies.store.recovery import RecoveryStore
from horsies_ops.doctor.findings import Finding, fail, ok, skip, warn
from horsies_ops.reads.diagnosis import orphans
from horsies_ops.reads.verdicts import stale_now

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horsies.model.recovery.judging import Fleet
    from horsies.model.recovery.published import FleetMember
    from horsies_ops.doctor.patient import Patient


async def _fleet(patient: Patient) -> Fleet:
    return await RecoveryStore(patient.reads.reading).fleet()


async def workers(patient: Patient) -> Finding:
    return judge_workers(await _fleet(patient))


def judge_workers(found: Fleet) -> Finding:
    silent = [each for each in found.live if each.is_silent(found.now)]
    live = [each for each in found.live if each not in silent]
    gone = sum(each.given_up_at <= found.now for each in found.members)
    parts = [
        f"{len(live)} live",
        *map(_since, silent),
        *([f"{gone} silent for longer than their threshold"] * bool(gone)),
    ]
    detail = ", ".join(parts)
    if not live:
        return warn(detail, hint="start one: horsies worker")
    if gone:
        return warn(detail, hint="horsies workers list --stale; a worker that lives will mark them lost")
    if silent:
        return warn(detail, hint="horsies workers ping asks them; one that is dead is declared lost by those that live")
    degraded = [each for each in live if each.health.get("listener") == "degraded"]
    if degraded:
        hint = "their log says why; until then they find work by the poll"
        return warn(f"{detail}, {len(degraded)} of them hear no notifications", hint=hint)
    return ok(detail)


def _since(member: FleetMember) -> str:
    return f"{short_form(member.worker_id)} silent since {member.last_heartbeat_at:%H:%M:%S}Z"


async def fleet_config(patient: Patient) -> Finding:
    return judge_fleet_config(await _fleet(patient))


def judge_fleet_config(found: Fleet) -> Finding:
    if not found.live:
        return skip("no live worker")
    differing = disagreements(found.live)
    if not differing:
        return ok("all live workers judge alike")
    detail = "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in differing.items())
    hint = "give all workers the same [recovery]; until then the most patient value counts"
    return warn(f"live workers differ in {detail}", hint=hint)


async def stale(patient: Patient) -> Finding:
    reading = patient.reads.reading
    found = await stale_now(reading, local=patient.settings.recovery)
    fleet = await _fleet(patient)
    return judge_stale(fleet, claimed=found.claimed, running=found.running, orphans=await orphans(reading))


def judge_stale(found: Fleet, *, claimed: int, running: int, orphans: int) -> Finding:
    """Stale work is to be looked at; where nobody is going to recover it, it is a failure."""
    if not (claimed or running or orphans):
        return ok("no work without a sign of life")
    detail = f"{claimed} claimed and {running} running tasks are silent, {orphans} have an owner that is gone"
    shown = "horsies sweep --dry-run shows what would become of them"
    if why := _why_nobody_recovers(found, claimed=claimed, running=running):
        return fail(f"{detail}, and {why}", hint=f"{shown}, horsies sweep does it")
    return warn(detail, hint=f"{shown}; a live worker does it by itself")


def _why_nobody_recovers(found: Fleet, *, claimed: int, running: int) -> str | None:
    live = [each.config for each in found.live if not each.is_silent(found.now)]
    if not live:
        return "no worker lives to recover them"
    if claimed and not any(each.auto_requeue_stale_claimed for each in live):
        return "no worker recovers them by itself: auto_requeue_stale_claimed is off"
    if running and not any(each.auto_fail_stale_running for each in live):
        return "no worker recovers them by itself: auto_fail_stale_running is off"
    return None


async def amnesty(patient: Patient) -> Finding:
    return judge_amnesty(await _fleet(patient))


def judge_amnesty(found: Fleet) -> Finding:
    if not found.live:
        return skip("no live worker")
    ends = [until for each in found.live if (until := each.instant("amnesty_until")) is not None and until > found.now]
    if len(ends) < len(found.live):
        return ok(f"{len(found.live) - len(ends)} of {len(found.live)} live workers have listened long enough to judge")
    hint = "nothing to do; horsies sweep --force goes by plain ages"
    return warn(f"no live worker has listened long enough to judge; the first will at {min(ends):%H:%M:%S}Z", hint=hint)


async def disabled_operations(patient: Patient) -> Finding:
    return judge_disabled(await _fleet(patient))


def judge_disabled(found: Fleet) -> Finding:
    names = sorted({name for each in found.live for name in _disabled(each)})
    if not names:
        return ok("none")
    return fail(f"keep failing: {', '.join(names)}", hint="horsies events --kind operation_disabled shows the errors")


def _disabled(member: FleetMember) -> Iterator[str]:
    named = member.health.get("disabled_operations")
    yield from map(str, named) if isinstance(named, list) else ()  # pyright: ignore[reportUnknownArgumentType]
