"""Who this worker is, and whether it may act."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from horsies.codec.ids import IDS
from horsies.model.fence import Fence
from horsies.store.fleet import WorkerRun
from horsies.version import __version__

if TYPE_CHECKING:
    from uuid import UUID

    from horsies.model.settings import AppConfig, RecoveryConfig, WorkerConfig


@dataclass(slots=True, kw_only=True)
class Identity:
    """The id under which this process claims now, and those under which it still holds work from before it was lost."""

    worker_id: UUID
    former_ids: list[UUID] = field(default_factory=list["UUID"])
    hostname: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)

    @classmethod
    def new(cls) -> Identity:
        return cls(worker_id=IDS.next())

    def renew(self) -> UUID:
        """Go on under a new id; returns the old one."""
        self.former_ids.append(self.worker_id)
        self.worker_id = IDS.next()
        return self.former_ids[-1]

    def run_of(self, worker: WorkerConfig, app: AppConfig) -> WorkerRun:
        return WorkerRun(
            worker_id=self.worker_id,
            hostname=self.hostname,
            pid=self.pid,
            version=__version__,
            queues=worker.queues or [],
            processes=worker.processes,
            recovery_config=app.recovery.model_dump(mode="json"),
        )


class Gate:
    """The self-fence: what a worker that was cut off may no longer do, kept up by its successful statements."""

    def __init__(self, recovery: RecoveryConfig) -> None:
        self._fence = Fence.of(recovery, now=time.monotonic())

    @property
    def is_shut(self) -> bool:
        return self._fence.blocks(time.monotonic())

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self._fence.last_success_at

    def passed(self, sent_at: float) -> None:
        """A statement that was sent then has succeeded."""
        self._fence = self._fence.after_statement(sent_at)

    def beaten(self, sent_at: float) -> None:
        """A worker beat that was sent then has succeeded."""
        self._fence = self._fence.after_worker_beat(sent_at)
