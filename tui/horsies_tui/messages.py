"""What happens between the layers: the store and the session tell, the screens listen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from horsies.errors import HorsiesError
    from horsies_ops.reads.filters import TaskFilter
    from horsies_tui.data.session import Connection


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

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.connection = connection


class TasksWanted(Message):
    """Whoever uses the screen wants to see these tasks."""

    def __init__(self, wanted: TaskFilter) -> None:
        super().__init__()
        self.filter = wanted


class TaskWanted(Message):
    """Whoever uses the screen wants to see everything about this task, and may go on through its list."""

    def __init__(self, task_id: UUID, among: Sequence[UUID] = ()) -> None:
        super().__init__()
        self.task_id = task_id
        self.among = tuple(among)


class RunWanted(Message):
    """Whoever uses the screen wants to see this run of a workflow."""

    def __init__(self, workflow_id: UUID) -> None:
        super().__init__()
        self.workflow_id = workflow_id


class WorkerWanted(Message):
    """Whoever uses the screen wants to see this worker."""

    def __init__(self, worker_id: UUID) -> None:
        super().__init__()
        self.worker_id = worker_id
