"""What `listen()` says, passed on: changes touch what the store shows, words about the feed go to the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies_ops.reads.changes import Feed, Topic
from horsies_tui.connection import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from horsies_ops.reads.changes import Change
    from horsies_tui.source import Source
    from horsies_tui.store import Store


async def hear(source: Source, store: Store, say: Callable[[State, str], object]) -> None:
    """Pass on what is heard until the feed ends.

    What was notified while nobody listened is gone, so a feed that begins or comes back has everything asked for.
    """
    async for change in source.listen():
        store.tape.hear(change)
        if change.topic is Topic.FEED:
            _about_the_feed(change, store, say)
        else:
            # Only the fact that something changed is used; what it is now is for the database to say.
            store.touch(change.topic, change.count)


def _about_the_feed(change: Change, store: Store, say: Callable[[State, str], object]) -> None:
    match Feed(change.kind):
        case Feed.LIVE | Feed.RESTORED:
            say(State.LIVE, "")
            store.resync()
        case Feed.POLLING:
            say(State.POLLING, "")
            store.resync()
        case Feed.LOST:
            # What to do about it stands on further lines, for commands; here there is room for what happened.
            say(State.LOST, (change.detail or "the connection is gone").splitlines()[0])
