"""How a child is made: one value, the same for every child of a pool."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, json
from msgspec.structs import replace

BEAT_S: Final = 1.0


class ChildSpec(Struct, frozen=True, kw_only=True):
    """What every child of a pool is told at its start, and what its owner expects of it."""

    app_locator: str | None = None
    """Where the app is; None asks the settings."""
    modules: tuple[str, ...] | None = None
    """Task modules in place of those that the app names."""
    environment: dict[str, str] = {}
    """Variables beside those of this process."""
    async_concurrency: int = 10
    start_limit_s: float = 20.0
    hook_limit_s: float = 10.0
    beat_s: float = BEAT_S
    silent_limit_s: float = 285.0
    """A child that neither beats nor uses its CPU for so long is killed."""
    unanswered_limit_s: float = 300.0
    """A child whose beats are not answered for so long ends itself."""
    max_tasks_per_child: int = 0
    max_memory_per_child_mb: int | None = None
    quit_limit_s: float = 5.0
    """How long a child that was asked to leave may take."""


class Birth(Struct, frozen=True, kw_only=True):
    """What one child finds on its command line."""

    spec: ChildSpec
    channel_fd: int
    life_fd: int
    parent_pid: int

    def argument(self) -> str:
        """As text; without the environment, which travels as such and is nothing for a list of processes to show."""
        return json.encode(replace(self, spec=replace(self.spec, environment={}))).decode()

    @classmethod
    def read(cls, argument: str) -> Birth:
        return json.decode(argument, type=cls)
