"""The signs that stand beside the words, in two sets: no emoji, whose width terminals disagree on, and plain ASCII."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """Colour is never the only sign of a state: each has a glyph here and a word beside it."""

    cursor: str
    mark: str
    rule: str
    back: str
    prompt: str
    enter: str
    """The key."""

    live: str
    polling: str
    slow: str
    lost: str
    connecting: str
    bad: str
    warn: str
    paused: str

    done: str
    failed: str
    running: str
    queued: str
    waiting: str
    skipped: str
    output: str

    claim: str
    beat: str
    silence: str
    unknown: str
    limit: str
    start: str

    branch: str
    last_branch: str
    trunk: str
    see: str

    full: str
    empty: str
    sparks: str


UNICODE: Final = Glyphs(
    cursor="▌", mark="✓", rule="─", back="‹", prompt="▸", enter="⏎",
    live="●", polling="◐", slow="◑", lost="○", connecting="◌", bad="✖", warn="▲", paused="‖",
    done="✓", failed="✗", running="▶", queued="◎", waiting="○", skipped="⊘", output="★",
    claim="c", beat="●", silence="┄", unknown="?", limit="│", start="├",
    branch="├─", last_branch="└─", trunk="│", see="↳",
    full="█", empty="▒", sparks="▁▂▃▄▅▆▇█",
)  # fmt: skip

ASCII: Final = Glyphs(
    cursor=">", mark="*", rule="-", back="<", prompt=">", enter="Ent",
    live="*", polling="%", slow="~", lost="o", connecting=".", bad="X", warn="!", paused="=",
    done="+", failed="x", running=">", queued="@", waiting="o", skipped="/", output="*",
    claim="c", beat="*", silence=".", unknown="?", limit="|", start="|",
    branch="|-", last_branch="`-", trunk="|", see="->",
    full="#", empty=".", sparks="_.-=+*#@",
)  # fmt: skip


def glyphs(*, is_ascii: bool) -> Glyphs:
    return ASCII if is_ascii else UNICODE


def spark(values: Sequence[float], signs: Glyphs, *, top: float | None = None) -> str:
    """One character a value, the highest one full, or what reaches `top`; the lowest sign where all is zero."""
    top = top or max(values, default=0) or 1
    last = len(signs.sparks) - 1
    return "".join(signs.sparks[round(min(max(value, 0) / top, 1) * last)] for value in values)


def sampled(values: Sequence[float], most: int) -> list[float]:
    """At most so many values for as many or more, each the highest of its stretch."""
    count = min(len(values), most)
    edges = [index * len(values) // count for index in range(count + 1)] if count else []
    return [max(values[start:end]) for start, end in pairwise(edges)]


def bar(part: float, whole: float, width: int, signs: Glyphs) -> str:
    """How much of a whole is taken."""
    full = round(min(max(part / whole, 0.0), 1.0) * width) if whole else 0
    return signs.full * full + signs.empty * (width - full)
