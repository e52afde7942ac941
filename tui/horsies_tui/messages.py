"""What happens between the layers: the store and the session tell, the screens listen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from horsies.errors import HorsiesError
    from horsies_tui.connection import Connection


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
