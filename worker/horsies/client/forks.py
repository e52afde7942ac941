"""What a child made by `fork` must not take over from its parent."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def in_each_child(renew: Callable[[], None]) -> None:
    """Call the bound method `renew` in every forked child while its object lives, which this does not prolong."""
    method = weakref.WeakMethod(renew)

    def renew_what_lives() -> None:
        if (living := method()) is not None:
            living()

    os.register_at_fork(after_in_child=renew_what_lives)
