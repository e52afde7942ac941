"""The data source of the TUI. A module of its own, because the TUI draws its first screen before it loads `Ops`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from horsies_ops.ops import Ops

DataSource: TypeAlias = "Ops"


class Opener(Protocol):
    """Opens the data source. `read_only` is also enforced by the database session."""

    def __call__(self, *, read_only: bool) -> AbstractAsyncContextManager[DataSource]: ...
