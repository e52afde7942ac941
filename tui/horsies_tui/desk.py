"""What every screen has at hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from horsies_tui.memory import Memory

if TYPE_CHECKING:
    from horsies.model.settings import TuiConfig
    from horsies_tui.clock import DatabaseClock
    from horsies_tui.glyphs import Glyphs
    from horsies_tui.session import Session
    from horsies_tui.source import Source
    from horsies_tui.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """One for all screens of an app; it is made before the first of them."""

    store: Store
    session: Session
    clock: DatabaseClock
    glyphs: Glyphs
    settings: TuiConfig
    database: str
    """Which one, for the header and for those who must type its name."""
    actor: str
    memory: Memory = field(default_factory=Memory)
    """What is remembered from one time to the next."""

    @property
    def source(self) -> Source | None:
        """Whom to ask; None while there is no connection."""
        return self.session.source

    @property
    def is_read_only(self) -> bool:
        return self.session.read_only

    @property
    def can_act(self) -> bool:
        """Whether actions are to be had at all."""
        return not self.is_read_only and self.session.connection.is_up
