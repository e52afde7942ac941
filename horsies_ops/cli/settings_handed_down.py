"""Settings for the processes that a command starts: by the environment, where no list of processes shows a password."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horsies_ops.cli.session import GlobalOptions


def hand_down(options: GlobalOptions, **flags: bool) -> None:
    """Have our children read the same settings; `flags` are settings that are switched on, as `tui__ascii`."""
    given = {
        "HORSIES_CONFIG": None if options.config is None else str(options.config.absolute()),
        "HORSIES_BROKER__DATABASE_URL": options.database_url,
        "HORSIES_LOG__LEVEL": options.loglevel,
        **{f"HORSIES_{name.upper()}": "true" if is_on else None for name, is_on in flags.items()},
    }
    os.environ.update({name: value for name, value in given.items() if value is not None})
