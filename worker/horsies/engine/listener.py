"""What the owner of a pool is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horsies.engine.deaths import ChildDied
    from horsies.engine.messages import Ending, Key, Stream
    from horsies.engine.supervise import Child


class PoolListener(Protocol):
    """Called on the event loop, as things happen, never twice for the same thing; must not block.

    Every key that was handed over comes back exactly once: by `ended`, by `recalled`, or in a death.
    """

    def ready(self, child: Child) -> None:
        """The child has come up and takes work."""
        ...

    def began(self, child: Child, key: Key) -> None: ...

    def ended(self, child: Child, key: Key, ending: Ending) -> None: ...

    def recalled(self, child: Child, keys: Sequence[Key]) -> None: ...

    def beat(self, child: Child, keys: Sequence[Key]) -> None:
        """The child's own thread says what it is at work on."""
        ...

    def said(self, child: Child, key: Key | None, stream: Stream, line: str) -> None:
        """Code in the child has written a line; without a key where nobody knows which task it was."""
        ...

    def died(self, child: Child, death: ChildDied) -> None:
        """A child that had been ready is gone; its slot is being refilled."""
        ...
