"""Where attempts begin and end: the one place that keeps count and reports."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from horsies.engine.messages import Began, Ended

if TYPE_CHECKING:
    from horsies.engine.child.begun import Begun
    from horsies.engine.child.channel import Channel
    from horsies.engine.child.output import Output
    from horsies.engine.messages import Ending, Key, Report


class Desk:
    """Reports what begins before any of its code runs. An ending waits for the next beginning, or for `flush`."""

    def __init__(self, channel: Channel, begun: Begun, output: Output) -> None:
        self._channel = channel
        self._begun = begun
        self._output = output
        self._unsent: list[Report] = []
        self._began_at: dict[Key, float] = {}

    def begin(self, key: Key) -> None:
        self._begun.add(key)
        self._began_at[key] = time.monotonic()
        self._unsent.append(Began(key))
        self.flush()

    def end(self, key: Key, ending: Ending) -> None:
        self._output.finish(key)
        self._begun.remove(key)
        run_ms = 1000 * (time.monotonic() - self._began_at.pop(key))
        self._unsent.append(Ended(key, replace(ending, run_ms=run_ms)))

    def flush(self) -> None:
        if self._unsent:
            self._channel.send(*self._unsent)
            self._unsent.clear()
