"""Messages from the data layer to the screens, and requests from screens to the app."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from textual.message import Message

from horsies.errors import HorsiesError

if TYPE_CHECKING:
    from horsies_ops.reads.filters import TaskFilter


class Fetched(Message):
    """A live query returned a result; `draw` passes it to the query's `on_result`."""

    def __init__(self, name: str, draw: Callable[[], object]) -> None:
        super().__init__()
        self.name = name
        self.draw = draw

    def can_replace(self, message: Message) -> bool:
        # A newer result replaces one that is still in the message queue.
        return isinstance(message, Fetched) and message.name == self.name


class FetchFailed(Message):
    """A live query failed; it will be retried."""

    def __init__(self, name: str, error: HorsiesError) -> None:
        super().__init__()
        self.name = name
        self.error = error


@dataclass
class ShowTasks(Message):
    """Request: show the Tasks screen with this filter."""

    filter: TaskFilter


@dataclass
class OpenTask(Message):
    """Request: open the detail of a task. `sibling_ids` are the tasks of its list, for previous and next."""

    task_id: UUID
    sibling_ids: tuple[UUID, ...] = ()


@dataclass
class ShowRun(Message):
    """Request: show this workflow run."""

    workflow_id: UUID


@dataclass
class ShowWorker(Message):
    """Request: show this worker."""

    worker_id: UUID
