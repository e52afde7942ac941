"""Which workers answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.client.monitoring import RollCall
from horsies.store.workers import pinging

if TYPE_CHECKING:
    from uuid import UUID

    from horsies.model.broker import WorkerPong
    from horsies.store.link import Link


async def ping_workers(
    direct: Link, *, timeout_s: float, worker_id: UUID | None = None, enough: int | None = None
) -> tuple[WorkerPong, ...]:
    """Those that answer in time, first come first; `enough` of them, or the one asked for, end the wait."""
    call = RollCall(target=None if worker_id is None else str(worker_id), enough=enough)
    async with pinging(direct, reply_channel=call.reply_channel, message=call.message) as line:
        await call.listen(line, timeout_s)
    return tuple(call.present.values())
