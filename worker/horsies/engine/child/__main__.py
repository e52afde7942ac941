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
from typing import TYPE_CHECKING, NoReturn

import psutil

from horsies.config import load
from horsies.engine.child.execution import Execution
from horsies.engine.child.lifetime import Guard, die_with, leave_signals_to_the_parent, speak_on
from horsies.engine.child.reports import Begun, Channel, Desk, Output
from horsies.engine.child.runner import Inbox, Runner, obey
from horsies.engine.pool.process import Birth
from horsies.engine.pool.protocol import Beat, ExitStatus, Loaded, Ready, StartFailed
from horsies.errors import HorsiesError

if TYPE_CHECKING:
    from collections.abc import Callable

    from horsies.engine.child.execution import RunnableApp
    from horsies.engine.pool.process import ChildSpec


# Bringing up the app in a child: its modules, then its hooks.


def bring_up(spec: ChildSpec, channel: Channel) -> RunnableApp:
    """The app with all of its tasks, its hooks run; where that fails, the worker is told why and this process ends."""
    try:
        app = _loaded(spec)
        hooks = tuple(app.child_hooks)
        channel.send(Loaded(len(hooks)))
        for hook in hooks:
            _run_hook(hook, channel, limit_s=spec.hook_limit_s)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # modules and hooks are user code
        traceback.print_exc()
        leave(channel, _told(error))
    return app


def leave(channel: Channel, message: str) -> NoReturn:
    channel.send(StartFailed(message))
    os._exit(ExitStatus.START_FAILED)


def _loaded(spec: ChildSpec) -> RunnableApp:
    # This program stands above every layer, the package that holds it below the app: hence by name.
    locate_app: Callable[..., RunnableApp] = pkgutil.resolve_name("horsies.discover:locate_app")
    app = locate_app(spec.app_locator, load())
    app.import_task_modules(spec.modules)
    return app


def _run_hook(hook: Callable[[], None], channel: Channel, *, limit_s: float) -> None:
    name = getattr(hook, "__qualname__", repr(hook))
    too_slow = f"child hook {name} did not return within {limit_s:g} s"
    timer = threading.Timer(limit_s, leave, (channel, too_slow))
    timer.daemon = True
    timer.start()
    try:
        hook()
    except (Exception, SystemExit) as error:
        error.add_note(f"in child hook {name}")
        raise
    finally:
        timer.cancel()


def _told(error: BaseException) -> str:
    if isinstance(error, HorsiesError):
        return error.message if error.location is None else f"{error.message} ({error.location})"
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__qualname__}: {error}{notes}"


def main(birth: Birth) -> None:
    faulthandler.enable(2)
    die_with(birth.parent_pid)
    leave_signals_to_the_parent()
    speak_on(birth.life_fd)
    guard = Guard(birth.life_fd, unanswered_limit_s=birth.spec.unanswered_limit_s)
    guard.start()
    channel, begun, inbox = _channel(birth), Begun(), Inbox()
    output = Output(channel, begun.speaker)
    app = bring_up(birth.spec, channel)
    desk = Desk(channel, begun, output)
    runner = Runner(inbox, Execution(app), desk, async_concurrency=birth.spec.async_concurrency)
    guard.answered()
    _in_thread(obey, channel, inbox, guard, runner)
    channel.send(Ready(psutil.Process().memory_info().rss))
    _in_thread(_beat, channel, begun, birth.spec.beat_s)
    runner.run()
    app.close()


def _channel(birth: Birth) -> Channel:
    # Programs that tasks start must not keep the worker's lines open.
    for descriptor in (birth.channel_fd, birth.life_fd):
        os.set_inheritable(descriptor, False)  # noqa: FBT003
    return Channel(socket.socket(fileno=birth.channel_fd))


def _beat(channel: Channel, begun: Begun, every_s: float) -> None:
    while True:
        channel.send(Beat(begun.keys))
        time.sleep(every_s)


def _in_thread(function: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=function, args=arguments, name=f"horsies-{function.__name__}", daemon=True).start()


if __name__ == "__main__":
    main(Birth.read(sys.argv[1]))
