"""The workflows of the invented system: which steps each has, and what each waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A node: a task of the catalogue, or a whole other workflow."""

    name: str
    after: tuple[int, ...] = ()
    join: str = "all"
    min_success: int | None = None
    is_workflow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    name: str
    steps: tuple[Step, ...]
    output: int | None = None


def _fetch(count: int) -> tuple[Step, ...]:
    return tuple(Step(name="scrape.page") for _ in range(count))


DIGEST: Final = Blueprint(
    name="digest-run",
    steps=(
        *_fetch(3),
        Step(name="etl.load", after=(0, 1, 2)),
        Step(name="etl.load", after=(0, 2), join="any"),
        Step(name="mail.send", after=(3,)),
        Step(name="mail.send", after=(4,)),
        Step(name="etl.load", after=(0, 1, 2), join="quorum", min_success=2),
        Step(name="mail.digest", after=(6, 7)),
        Step(name="report.build", after=(5, 8)),
    ),
    output=9,
)

ONBOARD: Final = Blueprint(
    name="onboard",
    steps=(
        Step(name="billing.charge"),
        Step(name="mail.send", after=(0,)),
        Step(name="etl.load", after=(0,)),
        Step(name="mail.digest", after=(1, 2)),
    ),
    output=3,
)

CRAWL: Final = Blueprint(
    name="crawl",
    steps=(
        Step(name="etl.load"),
        *(Step(name="scrape.page", after=(0,)) for _ in range(180)),
        Step(name="etl.load", after=tuple(range(1, 181)), join="quorum", min_success=150),
        Step(name="mail.send", after=(181,)),
    ),
    output=182,
)

NIGHTLY: Final = Blueprint(
    name="etl-night",
    steps=(
        *(Step(name="etl.load") for _ in range(6)),
        Step(name="crawl", after=(0, 1), is_workflow=True),
        Step(name="etl.load", after=(2, 3, 4, 5)),
        Step(name="etl.load", after=(6, 7)),
        Step(name="mail.digest", after=(8,)),
    ),
    output=9,
)

BY_NAME: Final = {each.name: each for each in (DIGEST, ONBOARD, CRAWL, NIGHTLY)}
