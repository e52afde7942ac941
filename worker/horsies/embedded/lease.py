"""One process's claim on a running server."""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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
        self._held = True
        atexit.register(self.release)

    def release(self) -> None:
        """Leave the server; the last one out stops it unless it is kept. Again is harmless.

        A signal handler may call this or raise to exit, even while it runs: what was cut short is completed at exit.
        """
        if not self._held or os.getpid() != self._owner:
            return
        self._held = False
        try:
            self._leave()
        except (KeyboardInterrupt, SystemExit):
            self._held = True
            raise
        atexit.unregister(self.release)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
