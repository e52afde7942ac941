"""Entry point of a child process: load the app, run its start hooks, then run tasks until the worker sends Quit."""

from __future__ import annotations

import faulthandler
import os
import pkgutil
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from horsies.config import load_settings
from horsies.engine.child.lifetime import (
    PR_SET_NAME,
    ParentWatchdog,
    announce_exit_on,
    die_with_parent,
    exit_with,
    ignore_signals,
    prctl,
)
from horsies.engine.child.reports import AttemptReporter, OutputCapture, ParentChannel, RunningTasks, encodable
from horsies.engine.child.runner import Inbox, RunnableApp, Runner, TaskExecutor, handle_commands
from horsies.engine.pool.protocol import (
    AppLoaded,
    ChildHeartbeat,
    ChildSpec,
    ExitStatus,
    Ready,
    StartChild,
    StartFailed,
)
from horsies.errors import HorsiesError


def main(channel_fd: int, watchdog_fd: int, *, parent_pid: int) -> None:
    faulthandler.enable(2)
    prctl(PR_SET_NAME, b"horsies-child")
    die_with_parent(parent_pid)
    ignore_signals()
    announce_exit_on(watchdog_fd)
    # Programs started by tasks must not inherit the sockets: the worker would not see them close.
    for descriptor in (channel_fd, watchdog_fd):
        os.set_inheritable(descriptor, False)  # noqa: FBT003
    channel, running, inbox = ParentChannel(socket.socket(fileno=channel_fd)), RunningTasks(), Inbox()
    commands = channel.commands()
    start = next(commands, None)
    if not isinstance(start, StartChild):
        exit_with(ExitStatus.CHANNEL_LOST)
    _set_environment(start.environment)
    spec = start.spec
    watchdog = ParentWatchdog(watchdog_fd, ack_timeout_s=spec.ack_timeout_s)
    watchdog.start()
    output = OutputCapture(channel, running.current)
    app = start_app(spec, channel)
    output.add_log_handler(spec.log_level)
    reporter = AttemptReporter(channel, running, output)
    runner = Runner(inbox, TaskExecutor(app), reporter, async_concurrency=spec.async_concurrency)
    watchdog.record_ack()
    _start_thread(handle_commands, commands, channel, inbox, watchdog, runner)
    channel.send(Ready())
    _start_thread(_send_heartbeats, channel, spec.heartbeat_interval_s)
    runner.run()
    app.close()


def _set_environment(variables: dict[bytes, bytes]) -> None:
    if variables != dict(os.environb):
        os.environb.clear()
        os.environb.update(variables)
        time.tzset()


def start_app(spec: ChildSpec, channel: ParentChannel) -> RunnableApp:
    """Import the app with its task modules and run its start hooks; on failure report it and exit."""
    try:
        # Resolved by name because the import contracts put horsies.discover above the engine.
        import_app: Callable[..., RunnableApp] = pkgutil.resolve_name("horsies.discover:import_app")
        app = import_app(spec.app_locator, load_settings())
        app.import_task_modules(spec.modules)
        hooks = tuple(app.child_hooks)
        channel.send(AppLoaded(len(hooks)))
        for hook in hooks:
            _run_hook(hook, channel, timeout_s=spec.hook_timeout_s)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # modules and hooks are user code
        traceback.print_exc()
        fail_start(channel, _describe_error(error))
    return app


def fail_start(channel: ParentChannel, message: str) -> NoReturn:
    channel.send(StartFailed(encodable(message)))
    os._exit(ExitStatus.START_FAILED)


def _run_hook(hook: Callable[[], None], channel: ParentChannel, *, timeout_s: float) -> None:
    name = getattr(hook, "__qualname__", repr(hook))
    timed_out = f"child hook {name} did not return within {timeout_s:g} s"
    timer = threading.Timer(timeout_s, fail_start, (channel, timed_out))
    timer.daemon = True
    timer.start()
    try:
        hook()
    except (Exception, SystemExit) as error:
        error.add_note(f"in child hook {name}")
        raise
    finally:
        timer.cancel()


def _describe_error(error: BaseException) -> str:
    if isinstance(error, HorsiesError):
        return error.message if error.location is None else f"{error.message} ({error.location})"
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__qualname__}: {error}{notes}"


def _send_heartbeats(channel: ParentChannel, interval_s: float) -> None:
    while True:
        channel.send(ChildHeartbeat())
        time.sleep(interval_s)


def _start_thread(function: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=function, args=arguments, name=f"horsies-{function.__name__}", daemon=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), parent_pid=int(sys.argv[3]))
