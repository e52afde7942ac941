"""The other side of `serving`: this process is the app of one visitor."""

from __future__ import annotations

import os
import threading
import time
from typing import Final

WEB_DRIVER: Final = "textual.drivers.web_driver:WebDriver"
LOOKED_EVERY_S: Final = 0.5


def is_served() -> bool:
    """Whether what is drawn goes to a browser and not to a terminal."""
    return os.environ.get("TEXTUAL_DRIVER") == WEB_DRIVER


def end_with_the_server() -> None:
    """End when the server does, however it ends: nobody would be there to close this app."""
    server = os.getppid()
    threading.Thread(target=_watch, args=(server,), name="horsies-served", daemon=True).start()


def _watch(server: int) -> None:
    while os.getppid() == server:
        time.sleep(LOOKED_EVERY_S)
    # Not `sys.exit`: whatever the app is waiting for, it waits for nobody any more.
    os._exit(1)
