"""A child of a worker. Its one argument says where its worker is and which app to run."""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

import psutil

from horsies.engine.child.begun import Begun
from horsies.engine.child.channel import Channel
from horsies.engine.child.desk import Desk
from horsies.engine.child.execution import Execution
from horsies.engine.child.guard import Guard, die_with, leave_signals_to_the_parent
from horsies.engine.child.inbox import Inbox
from horsies.engine.child.leaving import speak_on
from horsies.engine.child.orders import obey
from horsies.engine.child.output import Output
from horsies.engine.child.runner import Runner
from horsies.engine.child.start import bring_up
from horsies.engine.messages import Beat, Ready
from horsies.engine.spec import Birth

if TYPE_CHECKING:
    from collections.abc import Callable


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
