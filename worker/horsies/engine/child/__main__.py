"""A child of a worker. Its one argument says where its worker is and which app to run."""

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

import psutil

from horsies.config import load_settings
from horsies.engine.child.execution import RunnableApp, TaskExecutor
from horsies.engine.child.lifetime import ParentWatchdog, announce_exit_on, die_with_parent, ignore_signals
from horsies.engine.child.reports import AttemptReporter, OutputCapture, ParentChannel, RunningTasks
from horsies.engine.child.runner import Inbox, Runner, handle_commands
from horsies.engine.pool.process import ChildArgs, ChildSpec
from horsies.engine.pool.protocol import AppLoaded, ChildHeartbeat, ExitStatus, Ready, StartFailed
from horsies.errors import HorsiesError

# Bringing up the app in a child: its modules, then its hooks.


def start_app(spec: ChildSpec, channel: ParentChannel) -> RunnableApp:
    """The app with all of its tasks, its hooks run; where that fails, the worker is told why and this process ends."""
    try:
        app = _load_app(spec)
        hooks = tuple(app.child_hooks)
        channel.send(AppLoaded(len(hooks)))
        for hook in hooks:
            _run_hook(hook, channel, limit_s=spec.hook_limit_s)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # modules and hooks are user code
        traceback.print_exc()
        fail_start(channel, _describe_error(error))
    return app


def fail_start(channel: ParentChannel, message: str) -> NoReturn:
    channel.send(StartFailed(message))
    os._exit(ExitStatus.START_FAILED)


def _load_app(spec: ChildSpec) -> RunnableApp:
    # This program stands above every layer, the package that holds it below the app: hence by name.
    locate_app: Callable[..., RunnableApp] = pkgutil.resolve_name("horsies.discover:import_app")
    app = locate_app(spec.app_locator, load_settings())
    app.import_task_modules(spec.modules)
    return app


def _run_hook(hook: Callable[[], None], channel: ParentChannel, *, limit_s: float) -> None:
    name = getattr(hook, "__qualname__", repr(hook))
    too_slow = f"child hook {name} did not return within {limit_s:g} s"
    timer = threading.Timer(limit_s, fail_start, (channel, too_slow))
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


def main(args: ChildArgs) -> None:
    faulthandler.enable(2)
    die_with_parent(args.parent_pid)
    ignore_signals()
    announce_exit_on(args.watchdog_fd)
    guard = ParentWatchdog(args.watchdog_fd, unanswered_limit_s=args.spec.unanswered_limit_s)
    guard.start()
    channel, begun, inbox = _open_channel(args), RunningTasks(), Inbox()
    output = OutputCapture(channel, begun.current_task)
    app = start_app(args.spec, channel)
    desk = AttemptReporter(channel, begun, output)
    runner = Runner(inbox, TaskExecutor(app), desk, async_concurrency=args.spec.async_concurrency)
    guard.mark_answered()
    _start_thread(handle_commands, channel, inbox, guard, runner)
    channel.send(Ready(psutil.Process().memory_info().rss))
    _start_thread(_send_beats, channel, begun, args.spec.heartbeat_interval_s)
    runner.run()
    app.close()


def _open_channel(birth: ChildArgs) -> ParentChannel:
    # Programs that tasks start must not keep the worker's lines open.
    for descriptor in (birth.channel_fd, birth.watchdog_fd):
        os.set_inheritable(descriptor, False)  # noqa: FBT003
    return ParentChannel(socket.socket(fileno=birth.channel_fd))


def _send_beats(channel: ParentChannel, begun: RunningTasks, every_s: float) -> None:
    while True:
        channel.send(ChildHeartbeat(begun.keys))
        time.sleep(every_s)


def _start_thread(function: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=function, args=arguments, name=f"horsies-{function.__name__}", daemon=True).start()


if __name__ == "__main__":
    main(ChildArgs.from_argument(sys.argv[1]))
