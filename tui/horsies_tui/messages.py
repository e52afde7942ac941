"""What happens between the layers: the store and the session tell, the screens listen."""

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
    """What a screen wanted has come: an immutable value."""

    def __init__(self, name: str, value: object) -> None:
        super().__init__()
        self.name = name
        self.value = value

    def can_replace(self, message: Message) -> bool:
        # A newer answer makes the one that nobody has looked at yet superfluous.
        return isinstance(message, Fetched) and message.name == self.name


class FetchFailed(Message):
    """What a screen wanted could not be had; it will be tried again."""

    def __init__(self, name: str, error: HorsiesError) -> None:
        super().__init__()
        self.name = name
        self.error = error


class ConnectionChanged(Message):
    """The connection stands otherwise than before."""

    def __init__(self, connection: ConnectionStatus) -> None:
        super().__init__()
        self.connection = connection


class ShowTasks(Message):
    """Whoever uses the screen wants to see these tasks."""

    def __init__(self, task_filter: TaskFilter) -> None:
        super().__init__()
        self.filter = task_filter


class OpenTask(Message):
    """Whoever uses the screen wants to see everything about this task, and may go on through its list."""

    def __init__(self, task_id: UUID, sibling_ids: Sequence[UUID] = ()) -> None:
        super().__init__()
        self.task_id = task_id
        self.sibling_ids = tuple(sibling_ids)


class ShowRun(Message):
    """Whoever uses the screen wants to see this run of a workflow."""

    def __init__(self, workflow_id: UUID) -> None:
        super().__init__()
        self.workflow_id = workflow_id


class ShowWorker(Message):
    """Whoever uses the screen wants to see this worker."""

    def __init__(self, worker_id: UUID) -> None:
        super().__init__()
        self.worker_id = worker_id
