"""One process's claim on a running server."""

from __future__ import annotations

import atexit
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_HELD: set[Lease] = set()


class Lease:
    """The server runs as long as this is held; released at the latest when the interpreter exits.

    A forked child shares its parent's lease and cannot give it up: there, `release` does nothing.
    """

    def __init__(self, *, url: str, folder: Path, started: bool, leave: Callable[[], None]) -> None:
        self.url = url
        self.folder = folder
        self.started = started
        self._leave = leave
        self._owner = os.getpid()
        _HELD.add(self)

    @property
    def is_held(self) -> bool:
        return self in _HELD

    def release(self) -> None:
        """Leave the server; the last one out stops it unless it is kept. Again is harmless.

        A signal handler may call this or raise to exit, even while it runs: what was cut short is completed at exit.
        """
        if not self.is_held or os.getpid() != self._owner:
            return
        _HELD.discard(self)
        try:
            self._leave()
        except (KeyboardInterrupt, SystemExit):
            _HELD.add(self)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


# Known to the interpreter since this was imported, it runs after every handler that a program adds later: those may
# still use the server.
@atexit.register
def _release_all() -> None:
    with ExitStack() as releases:
        for lease in list(_HELD):
            releases.callback(lease.release)
