"""What the demo sends: a mix in which something is always slow, fails, is retried, expires or crashes."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PAUSE_S: Final = 0.25
FLOWS_EVERY_S: Final = 4.0
LONG_TASKS: Final = 3


async def send_traffic(until: asyncio.Event) -> None:
    """Send tasks a few at a time, and start workflows now and then, until told to stop."""
    # Imported here: the app reads the settings of the demo, which are not there before.
    from horsies import sample

    flows = (sample.gallery, sample.rate, sample.order, sample.newsletter)
    # Long enough to be running when a worker is killed: this is what will have to be recovered.
    for _ in range(LONG_TASKS):
        await sample.import_catalogue.send_async(pages=8)
    started = 0
    begun_at = asyncio.get_running_loop().time()
    while not until.is_set():
        for send in random.choices(_sends(), weights=_WEIGHTS, k=6):  # noqa: S311  # a mix, no secret
            await send()
        if asyncio.get_running_loop().time() - begun_at >= started * FLOWS_EVERY_S:
            await flows[started % len(flows)].start_async()
            started += 1
        await _wait(until, PAUSE_S)
    await sample.app.close_async()


_WEIGHTS: Final = (30, 20, 15, 5, 6, 2, 3, 3)


def _sends() -> list[Callable[[], Awaitable[Any]]]:
    from horsies import sample

    soon = datetime.now(UTC) + timedelta(seconds=1)
    return [
        lambda: sample.send_email.send_async("ada@example.org", "Hello"),
        lambda: sample.resize.send_async(sample.Size(width=4000, height=3000)),
        lambda: sample.fetch_rate.send_async("EUR", latency_s=0.4),
        lambda: sample.send_email.send_async("nobody", "Hello"),
        lambda: sample.charge_card.send_async(Decimal("9.99"), succeeds_on_attempt=2),
        sample.crash.send_async,
        lambda: sample.make_report.send_async(seconds=2.0),
        lambda: sample.resize.with_options(good_until=soon, delay=2).send_async(sample.Size(width=1, height=1)),
    ]


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
