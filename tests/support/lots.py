"""What is drawn by lot in the lives of workers, and in those of their operators."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from hypothesis import strategies as st

from tests.support.puppets import Phase
from tests.support.wishes import CRASHED, FAILED, OK, WISHES, Wish

MOST_UNFINISHED: Final = 3
"""Few, so that much happens to each."""


class Blow(Enum):
    """What may happen to a worker."""

    STAND_STILL = auto()
    KILL = auto()
    STOP = auto()


class Word(Enum):
    """What an operator may say."""

    CANCEL = auto()
    REQUEUE = auto()
    PAUSE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a worker goes on, whatever is next."""

    wish: Wish = field(default_factory=Wish)
    """What is sent before a claim, so that there is something to claim."""
    count: int = MOST_UNFINISHED
    phase: Phase = Phase.BEGUN
    has_lease: bool = False
    is_heard: bool = True
    """Whether the answer to a claim arrives."""
    gives_up: bool = False
    code: str = OK
    times: int = 1
    """The end of a task is told again where nobody heard the answer."""


PLANS = st.builds(
    Plan,
    wish=WISHES,
    count=st.integers(1, 3),
    phase=st.sampled_from([Phase.BEGUN, Phase.BEGUN, Phase.HANDED, Phase.CLAIMED]),
    has_lease=st.booleans(),
    is_heard=st.sampled_from([True, True, True, False]),
    gives_up=st.sampled_from([False, False, True]),
    code=st.sampled_from([OK, FAILED, CRASHED]),
    times=st.sampled_from([1, 1, 2]),
)
