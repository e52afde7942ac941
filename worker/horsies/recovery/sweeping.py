"""One sweep: lost workers, stale claims and runs, what waited too long, and broken workflows.

Rows are found without a lock and judged by the one decision; hooks are asked while no transaction is open; each verdict
is a guarded call of its own. A dry run goes the same way, up to the calls that write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.model.recovery.judging import ruling
from horsies.recovery.report import EVERY_STEP, Step, SweepReport, SweepStatus
from horsies.recovery.work import Pass
from horsies.store.recovery import RecoveryStore

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection

    from horsies.model.recovery.judging import Judge
    from horsies.model.recovery.options import SweepOptions
    from horsies.recovery.healing import Healing
    from horsies.recovery.hooks import Asking
    from horsies.recovery.record import Record
    from horsies.store.db import Database


async def sweep(
    database: Database,
    options: SweepOptions,
    *,
    judge: Judge,
    hooks: Asking | None = None,
    healing: Healing | None = None,
    steps: Collection[Step] = EVERY_STEP,
    record: Record | None = None,
    stop: asyncio.Event | None = None,
) -> SweepReport:
    """Settle what is stale, or say that somebody else is at it; a step that failed is raised after the others ran.

    `healing` is for workflows. A dry run heals nothing, and leaves no `record`. `stop` ends it after a few tasks more.
    """
    store = RecoveryStore(database)
    if options.dry_run:
        report = await make_pass(database, options, judge=judge, hooks=hooks, healing=healing, steps=steps, stop=stop)
    else:
        report = await store.in_turn(
            lambda: make_pass(
                database, options, judge=judge, hooks=hooks, healing=healing, steps=steps, record=record, stop=stop
            )
        ) or await _busy(store, options, judge, hooks)
    for failure in report.failures:
        raise failure.error
    return report


async def make_pass(
    database: Database,
    options: SweepOptions,
    *,
    judge: Judge,
    hooks: Asking | None = None,
    healing: Healing | None = None,
    steps: Collection[Step] = EVERY_STEP,
    budget_s: float | None = None,
    record: Record | None = None,
    stop: asyncio.Event | None = None,
) -> SweepReport:
    """The same for a caller who has the turn already; failed steps are told in the report and stop no other.

    What does not fit into `budget_s` is left to the next pass.
    """
    store = RecoveryStore(database)
    fleet = await store.fleet()
    work = Pass(
        store=store,
        options=options,
        judge=judge,
        fleet=fleet,
        hooks=hooks,
        budget_s=budget_s,
        healing=healing,
        record=record,
        stop=stop,
    )
    return await work.run(steps)


async def _busy(store: RecoveryStore, options: SweepOptions, judge: Judge, hooks: Asking | None) -> SweepReport:
    ruled = ruling(judge, options, await store.fleet())
    return SweepReport(
        status=SweepStatus.BUSY,
        dry_run=False,
        thresholds=ruled.thresholds,
        hooks_loaded=hooks is not None,
        warnings=ruled.warnings,
    )
