"""Tasks of workers that are no more, written past the library."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from horsies.codec.ids import IDS
from tests.support.ledger_app import QUICK_RECOVERY, retried

if TYPE_CHECKING:
    from tests.support.ledger import Ledger

_OWNER = """
INSERT INTO horsies_workers (id, hostname, pid, version, processes, state, started_at, last_heartbeat_at,
                             recovery_config)
VALUES ($1, 'elsewhere', 1, '0', 1, $2, now() - make_interval(secs => $3), now() - make_interval(secs => $3),
        $4::text::jsonb)
"""
_TASK = """
INSERT INTO horsies_tasks (id, task_name, status, claimed, claim_token, sent_at, enqueued_at, claimed_at, started_at,
                           claimed_by_worker_id, enqueue_sha, max_retries, task_options, flags, good_until)
SELECT $1, $2, $3, $3 = 'CLAIMED', 1, since, since, since, CASE WHEN $3 = 'RUNNING' THEN since END, $5, '', $6,
       $7::text::jsonb, $8::text::jsonb, now() + make_interval(secs => $9)
  FROM (SELECT now() - make_interval(secs => $4) AS since) AS silence
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A task whose owner was last heard of `silent_s` seconds ago; a `state` of None is an owner without a row."""

    task: str = "work"
    status: str = "RUNNING"
    silent_s: float = 60.0
    state: str | None = "running"
    retries: int = 0
    """For WORKER_CRASHED, after a second each."""
    flags: dict[str, bool] = field(default_factory=dict[str, bool])
    good_for_s: float | None = None
    thresholds: dict[str, Any] = field(default_factory=dict[str, Any])
    """The owner's own, where they are not those of every test."""

    async def put(self, ledger: Ledger) -> str:
        """Write the task and its owner; returns the id of the task."""
        task_id, owner_id = IDS.next(), IDS.next()
        if self.state is not None:
            config = json.dumps(QUICK_RECOVERY | self.thresholds)
            await ledger.fetch(_OWNER, owner_id, self.state, self.silent_s, config)
        policy = retried("WORKER_CRASHED", times=self.retries).model_dump(mode="json") if self.retries else None
        options = json.dumps({"retry_policy": policy} if policy else {})
        await ledger.fetch(
            _TASK,
            task_id,
            self.task,
            self.status,
            self.silent_s,
            owner_id,
            self.retries,
            options,
            json.dumps(self.flags),
            self.good_for_s,
        )
        return str(task_id)
