"""The watchdog: stops an embedded server some seconds after the last process using it has exited or was killed.

It is a process of its own, so consecutive commands share one server, and a killed process leaves no server behind.
While the server is in use, the watchdog blocks on `users.lock` and uses no CPU.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from horsies.embedded.binaries import unavailable
from horsies.embedded.layout import ClusterPaths, ExclusiveLock, exclusive_lock, is_locked, is_used, start_lock

if TYPE_CHECKING:
    import psutil

    from horsies.embedded.server import Cluster

LINGER_VARIABLE = "HORSIES_PG_LINGER_S"
MAX_LINGER_S = 10.0
_POLL_INTERVAL_S = 0.2
_START_TIMEOUT_S = 60.0
_PROGRAM = """
import sys
sys.path[:0] = [sys.argv[1]]
from horsies.embedded.watchdog import main
main()
"""


def configured_linger_s() -> float:
    """Return how long an unused server keeps running: HORSIES_PG_LINGER_S, by default and at most 10 seconds."""
    text = os.environ.get(LINGER_VARIABLE, str(MAX_LINGER_S))
    try:
        linger_s = float(text)
    except ValueError:
        linger_s = -1.0
    if not 0 <= linger_s <= MAX_LINGER_S:
        hint = f"unset {LINGER_VARIABLE} to use the default"
        raise unavailable(f"{LINGER_VARIABLE} must be a number from 0 to {MAX_LINGER_S:g}, got {text!r}", hint=hint)
    return linger_s


def start_watchdog(paths: ClusterPaths, linger_s: float) -> bool:
    """Start the watchdog unless there is one; False if it cannot be started. Requires the start lock."""
    if is_locked(paths.linger_lock):
        return True
    modules = str(Path(__file__).parents[2])
    command = [sys.executable, "-P", "-c", _PROGRAM, modules, str(paths.folder), str(linger_s)]
    try:
        # run() returns when the watchdog holds its lock and has forked into the background.
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",  # our working directory may be deleted or unmounted meanwhile
            start_new_session=True,
            timeout=_START_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return is_locked(paths.linger_lock)


def main() -> None:
    """Run the watchdog; its command-line arguments are the modules folder, the cluster's folder and `linger_s`."""
    from horsies.embedded.server import Cluster

    _, _, folder, linger_s = sys.argv
    cluster = Cluster(paths=ClusterPaths(Path(folder)), durable=True, settings={})
    lock = ExclusiveLock(cluster.paths.linger_lock)
    if os.fork():
        os._exit(0)  # the child holds the lock
    _watch(cluster, lock, float(linger_s))


def _watch(cluster: Cluster, lock: ExclusiveLock, linger_s: float) -> None:
    paths = cluster.paths
    folder_id = paths.folder.stat().st_ino
    server = _server_process(cluster)
    try:
        while True:
            with exclusive_lock(paths.users_lock):  # waits until no process uses the server
                used_at = _last_use(paths, folder_id)
            server = _server_process(cluster) or server  # unless the folder, with its pid file, was just deleted
            deadline = time.monotonic() + linger_s
            while time.monotonic() < deadline and _last_use(paths, folder_id) == used_at:
                if server is not None and not server.is_running():
                    break  # stopped by a command
                time.sleep(min(_POLL_INTERVAL_S, linger_s))
            with start_lock(paths.start_lock, timeout_s=inf):
                if _last_use(paths, folder_id) == used_at and not is_used(paths.users_lock):
                    if not paths.keep_marker.exists():
                        cluster.stop()
                    # Before the start lock is free: the next process that starts the server needs a new watchdog.
                    lock.close()
                    return
    except FileNotFoundError:  # the folder was deleted, and with it the data
        if server is not None:
            server.send_signal(signal.SIGQUIT)


def _last_use(paths: ClusterPaths, folder_id: int) -> int:
    """Return when a process last took or released `users.lock`; raises FileNotFoundError if the folder was deleted."""
    if paths.folder.stat().st_ino != folder_id:
        raise FileNotFoundError
    return paths.users_lock.stat().st_mtime_ns


def _server_process(cluster: Cluster) -> psutil.Process | None:
    """Return the server's process; psutil does not signal another process that reuses its pid."""
    import psutil

    try:
        server = psutil.Process(cluster.pid or 0)
        return server if server.cwd() == str(cluster.paths.data) else None
    except psutil.Error:
        return None
