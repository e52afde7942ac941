"""What this worker can take now."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from horsies.engine.held import Phase
from horsies.model.admission import Admission
from horsies.model.chunks import chunk_size
from horsies.model.claiming import MOST_CHUNKS, Limits, ServedQueue, next_pass, places_beside, places_free
from horsies.store.claims import ClaimRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horsies.engine.parts import Parts
    from horsies.engine.supervise import Child


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The child of each place: those that any task may take, and those beside coroutines, for coroutines only."""

    free: list[int]
    beside: list[int]


class Room:
    """Places in children and budgets, as the next claim may use them; none once it is closed."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.is_closed = False
        """Nothing more is handed over: the worker is about to leave."""
        self.admission = Admission()

    def request(self) -> ClaimRequest | None:
        """What to ask the queue for; None when there is room for nothing."""
        parts = self._parts
        children = self.children()
        waiting = parts.desk.all(Phase.WAITING)
        # A function that has been claimed already comes before whatever could be claimed to run beside coroutines.
        is_awaited = not all(map(parts.hands.is_async, waiting))
        asked = next_pass(
            self._served(),
            [parts.hands.load_of(child) for child in children],
            self._limits(),
            claimed=len(waiting),
            most_beside=0 if is_awaited else self.admission.most(time.monotonic()),
        )
        if asked is None or self.is_closed:
            return None
        lease_ms, places = parts.app.claim_lease_ms, self.places(children)
        return ClaimRequest(
            worker_id=parts.identity.worker_id,
            hostname=parts.identity.hostname,
            queues=asked.queues,
            limit=asked.limit,
            pids=[*places.free[: asked.startable - asked.beside], *places.beside[: asked.beside]],
            lease_s=None if lease_ms is None else lease_ms / 1000,
            cluster_cap=asked.cluster_cap,
        )

    def children(self) -> list[Child]:
        """Those that take work, the least busy first."""
        hands = self._parts.hands
        able = [child for child in self._parts.pool.children if child.accepts_work and not hands.of(child).is_closed]
        return sorted(able, key=lambda child: len(hands.of(child).held))

    def places(self, children: Sequence[Child]) -> Places:
        """What these children offer."""
        loads = [(child.pid, self._parts.hands.load_of(child)) for child in children]
        size = max((each.chunk_size for each in self._served()), default=1)
        most = self._parts.worker.async_concurrency
        return Places(
            free=_turn_by_turn([pid] * places_free(load, size, depth=MOST_CHUNKS) for pid, load in loads),
            beside=_turn_by_turn([pid] * places_beside(load, async_concurrency=most) for pid, load in loads),
        )

    def _served(self) -> list[ServedQueue]:
        parts = self._parts
        caps = {queue.name: queue.max_concurrency for queue in parts.app.custom_queues or ()}
        is_cap_on_all = parts.app.cluster_wide_cap is not None
        return [
            ServedQueue(
                name=name,
                max_concurrency=caps.get(name),
                chunk_size=chunk_size(
                    parts.times.of_queue(name),
                    max_chunk=parts.worker.max_chunk,
                    is_capped=is_cap_on_all or caps.get(name) is not None,
                ),
            )
            for name in parts.worker.queues or ()
        ]

    def _limits(self) -> Limits:
        app, worker = self._parts.app, self._parts.worker
        return Limits(
            prefetch_buffer=app.prefetch_buffer,
            max_claim_batch=worker.max_claim_batch,
            max_claim_per_worker=worker.max_claim_per_worker,
            async_concurrency=worker.async_concurrency,
            cluster_wide_cap=app.cluster_wide_cap,
        )


def _turn_by_turn(offers: Iterable[Sequence[int]]) -> list[int]:
    """One of each, then the next, so that a few tasks are spread over all children."""
    return [pid for pid in chain.from_iterable(zip_longest(*offers)) if pid is not None]
