"""Obeying the worker, in a thread of its own, while the main one is at work."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from horsies.engine.child.leaving import leave_with
from horsies.engine.messages import Answer, Cancel, ExitStatus, Quit, Recall, Recalled, Run

if TYPE_CHECKING:
    from horsies.engine.child.channel import Channel
    from horsies.engine.child.guard import Guard
    from horsies.engine.child.inbox import Inbox
    from horsies.engine.child.runner import Runner
    from horsies.engine.messages import Order


def obey(channel: Channel, inbox: Inbox, guard: Guard, runner: Runner) -> None:
    """Follow every order; without a worker to give them, or to make sense of, there is nothing left to do here."""
    try:
        for order in channel.orders():
            _follow(order, channel, inbox, guard, runner)
    finally:
        leave_with(ExitStatus.LINE_LOST)


def _follow(order: Order, channel: Channel, inbox: Inbox, guard: Guard, runner: Runner) -> None:
    match order:
        case Run(assignments):
            inbox.put(assignments)
        case Answer():
            guard.answered()
        case Recall():
            channel.send(Recalled(inbox.recall()))
        case Cancel(key):
            if unbegun := inbox.recall(key):
                channel.send(Recalled(unbegun))
            runner.cancel(key)
        case Quit():
            inbox.close()
        case _:
            assert_never(order)
