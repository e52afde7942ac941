"""Bringing up the app in a child: its modules, then its hooks."""

from __future__ import annotations

import os
import pkgutil
import threading
import traceback
from typing import TYPE_CHECKING, NoReturn

from horsies.config import load
from horsies.engine.messages import ExitStatus, Loaded, StartFailed
from horsies.errors import HorsiesError

if TYPE_CHECKING:
    from collections.abc import Callable

    from horsies.engine.child.channel import Channel
    from horsies.engine.child.execution import RunnableApp
    from horsies.engine.spec import ChildSpec


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
