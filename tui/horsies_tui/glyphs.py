"""The signs that stand beside the words, in two sets: no emoji, whose width terminals disagree on, and plain ASCII."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """Colour is never the only sign of a state: each has a glyph here and a word beside it."""

    cursor: str
    mark: str
    rule: str
    back: str
    prompt: str

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
    cursor="▌", mark="✓", rule="─", back="‹", prompt="▸",
    live="●", polling="◐", slow="◑", lost="○", connecting="◌", bad="✖", warn="▲", paused="‖",
    done="✓", failed="✗", running="▶", queued="◎", waiting="○", skipped="⊘", output="★",
    claim="c", beat="●", silence="┄", unknown="?", limit="│", start="├",
    branch="├─", last_branch="└─", trunk="│", see="↳",
    full="█", empty="▒", sparks="▁▂▃▄▅▆▇█",
)  # fmt: skip

ASCII: Final = Glyphs(
    cursor=">", mark="*", rule="-", back="<", prompt=">",
    live="*", polling="%", slow="~", lost="o", connecting=".", bad="X", warn="!", paused="=",
    done="+", failed="x", running=">", queued="@", waiting="o", skipped="/", output="*",
    claim="c", beat="*", silence=".", unknown="?", limit="|", start="|",
    branch="|-", last_branch="`-", trunk="|", see="->",
    full="#", empty=".", sparks="_.-=+*#@",
)  # fmt: skip


def glyphs(*, is_ascii: bool) -> Glyphs:
    return ASCII if is_ascii else UNICODE


def spark(values: list[float], signs: Glyphs) -> str:
    """One character a value, the highest one full; nothing but the lowest sign where all is zero."""
    top = max(values, default=0) or 1
    last = len(signs.sparks) - 1
    return "".join(signs.sparks[round(max(value, 0) / top * last)] for value in values)
