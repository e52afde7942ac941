"""Messages from the data layer to the screens, and requests from screens to the app."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from textual.message import Message

from horsies.errors import HorsiesError

if TYPE_CHECKING:
    from horsies_ops.reads.filters import TaskFilter
    from horsies_tui.data.session import ConnectionStatus


class Fetched(Message):
    """A live query returned a result: an immutable value."""

    def __init__(self, name: str, value: object) -> None:
        super().__init__()
        self.name = name
        self.value = value

    def can_replace(self, message: Message) -> bool:
        # A newer result replaces one that is still in the message queue.
        return isinstance(message, Fetched) and message.name == self.name


class FetchFailed(Message):
    """A live query failed; it will be retried."""

    def __init__(self, name: str, error: HorsiesError) -> None:
        super().__init__()
        self.name = name
        self.error = error


class ConnectionChanged(Message):
    """The connection status changed."""

    def __init__(self, connection: ConnectionStatus) -> None:
        super().__init__()
        self.connection = connection


class ShowTasks(Message):
    """Request: show the Tasks screen with this filter."""

    def __init__(self, task_filter: TaskFilter) -> None:
        super().__init__()
        self.filter = task_filter


class OpenTask(Message):
    """Request: open the detail of a task. `sibling_ids` are the tasks of its list, for previous and next."""

    def __init__(self, task_id: UUID, sibling_ids: Sequence[UUID] = ()) -> None:
        super().__init__()
        self.task_id = task_id
        self.sibling_ids = tuple(sibling_ids)


class ShowRun(Message):
    """Request: show this workflow run."""

    def __init__(self, workflow_id: UUID) -> None:
        super().__init__()
        self.workflow_id = workflow_id


class ShowWorker(Message):
    """Request: show this worker."""

    def __init__(self, worker_id: UUID) -> None:
        super().__init__()
        self.worker_id = worker_id
