"""Tasks in flight: claimed by this worker and not settled, either prefetched or in a chunk."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID

from horsies.engine.pool.chunk import Chunk, TaskState
from horsies.engine.pool.protocol import Assignment, AttemptKey
from horsies.model.retry import AttemptState, Cancel, Cause, Fail, Retry, decide_retry, stored_policy
from horsies.model.task import TaskContext
from horsies.store.claims import ClaimedRow, ClaimRef

if TYPE_CHECKING:
    from horsies.engine.pool.child import Child

_NO_OPTIONS: dict[str, Any] = {}
_NO_FLAGS: dict[str, bool] = {}
_cached_str = lru_cache(maxsize=16)(str)  # worker ids: few distinct values, formatted for every assignment


class InFlightTask(NamedTuple):
    """One claimed task; made where a single task is handled, because most tasks are only counted in their chunk."""

    row: ClaimedRow
    worker_id: UUID
    chunk: Chunk | None = None
    """None while the task is prefetched: CLAIMED in the database and waiting for a free slot."""
    position: int = 0

    @property
    def claim(self) -> ClaimRef:
        return ClaimRef(self.row.id, self.row.claim_token, self.worker_id)

    @property
    def key(self) -> AttemptKey:
        return AttemptKey(str(self.row.id), self.row.claim_token)

    @property
    def timeout_ms(self) -> int | None:
        return timeout_ms(self.row)

    @property
    def pid(self) -> int | None:
        """The child that has or had the task."""
        return None if self.chunk is None else self.chunk.child.pid

    def decide_retry(self, cause: Cause, *, max_crashes: int | None = None) -> float | Fail | Cancel:
        """Return the delay in seconds until this attempt is retried, or why it is not.

        The statement that stores the outcome adds the delay to the database time. It also checks `good_until`, by the
        same clock, and whether the workflow was paused or cancelled meanwhile.
        """
        now = datetime.now(UTC)  # any time would do: only the difference is used
        state = AttemptState(
            policy=stored_policy(parse_options(self.row.task_options)),
            retry_count=self.row.retry_count,
            crash_count=self.row.crash_count,
            max_crashes=max_crashes,
        )
        decision = decide_retry(state, cause, now=now, jitter=random.random())  # noqa: S311  # jitter, not security
        return (decision.at - now).total_seconds() if isinstance(decision, Retry) else decision

    @property
    def is_in_child(self) -> bool:
        return self.chunk is not None and self.chunk.is_in_child(self.position)

    @property
    def is_storing(self) -> bool:
        return self.chunk is not None and self.chunk.states[self.position] == TaskState.STORING


class InFlight:
    """All tasks in flight: those in chunks by the number of the chunk, the others by id and claim token."""

    def __init__(self) -> None:
        self.prefetched: dict[tuple[UUID, int], InFlightTask] = {}
        """CLAIMED; they wait for a free slot."""
        self.unassigned: dict[tuple[UUID, int], InFlightTask] = {}
        """RUNNING, but no child could take them; to be released."""
        self.chunks: dict[int, Chunk] = {}
        self._numbers = count()

    def add_prefetched(self, row: ClaimedRow, worker_id: UUID) -> None:
        self.prefetched[row.id, row.claim_token] = InFlightTask(row, worker_id)

    def add_unassigned(self, rows: Iterable[ClaimedRow], worker_id: UUID) -> list[InFlightTask]:
        tasks = [InFlightTask(row, worker_id) for row in rows]
        self.unassigned.update(((task.row.id, task.row.claim_token), task) for task in tasks)
        return tasks

    def add_chunk(
        self, child: Child, rows: Sequence[ClaimedRow], worker_id: UUID, *, is_async: bool, expected_ms: float
    ) -> Chunk:
        """Add started tasks that are about to be sent to a child."""
        chunk = Chunk(next(self._numbers), rows, worker_id, child, is_async=is_async, expected_ms=expected_ms)
        self.chunks[chunk.number] = chunk
        return chunk

    def settle(self, task: InFlightTask) -> None:
        """Forget a task that is stored, released or lost; its heartbeats end."""
        if task.chunk is None:
            key = (task.row.id, task.row.claim_token)
            self.prefetched.pop(key, None)
            self.unassigned.pop(key, None)
        else:
            self.settle_in_chunk(task.chunk, task.position)

    def settle_in_chunk(self, chunk: Chunk, position: int) -> None:
        chunk.settle(position)
        if not chunk.unsettled:
            self.chunks.pop(chunk.number, None)

    def __iter__(self) -> Iterator[InFlightTask]:
        yield from tuple(self.prefetched.values())
        yield from self.started()

    def started(self) -> Iterator[InFlightTask]:
        """The tasks that are RUNNING in the database, or whose outcome is being stored."""
        yield from tuple(self.unassigned.values())
        for chunk in tuple(self.chunks.values()):
            for position, state in enumerate(chunk.states):
                if state != TaskState.SETTLED:
                    yield InFlightTask(chunk.rows[position], chunk.worker_id, chunk, position)

    @property
    def is_running(self) -> bool:
        """Whether a task is in a child, or left it without an outcome and is not released or resolved yet."""
        in_chunks = any(min(chunk.states) < TaskState.STORING for chunk in self.chunks.values())
        return in_chunks or bool(self.unassigned)

    def count_running(self) -> int:
        in_chunks = sum(state < TaskState.STORING for chunk in self.chunks.values() for state in chunk.states)
        return in_chunks + len(self.unassigned)

    def count_started(self) -> int:
        return sum(chunk.unsettled for chunk in self.chunks.values()) + len(self.unassigned)


def build_assignment(row: ClaimedRow, worker_id: UUID) -> Assignment:
    """The command to run a claimed task."""
    context = TaskContext(
        task_id=str(row.id),
        task_name=row.task_name,
        queue_name=row.queue_name,
        attempt=row.attempts + 1,
        retry_count=row.retry_count,
        claim_token=row.claim_token,
        sent_at=row.sent_at,
        good_until=row.good_until,
        timeout_ms=timeout_ms(row),
        worker_id=_cached_str(worker_id),
        flags=_NO_FLAGS if row.flags == "{}" else _parse_flags(row.flags),
        possible_overlap=row.overlap_possible,
    )
    return Assignment(
        task=context,
        args=row.args.encode(),
        kwargs=row.kwargs.encode(),
        workflow_context=None if row.context is None else row.context.encode(),
    )


def timeout_ms(row: ClaimedRow) -> int | None:
    return None if row.task_options == "{}" else parse_options(row.task_options).get("timeout_ms")


@lru_cache(maxsize=256)  # all sends of a task store the same options
def parse_options(stored: str) -> dict[str, Any]:
    return json.loads(stored) if stored != "{}" else _NO_OPTIONS


def _parse_flags(stored: str) -> dict[str, bool]:
    """Read the stored flags. A child would reject other values than booleans, which other programs may have stored."""
    flags: object = json.loads(stored)
    return {name: bool(value) for name, value in cast("Any", flags).items()} if isinstance(flags, dict) else {}
