"""Who acts, for the record."""

from __future__ import annotations

import getpass
import os
import socket

from horsies.store.audit import Operator


def operator_at(name: str | None, via: str) -> Operator:
    """The operator of this name, else the one that `HORSIES_ACTOR` names, else whoever is logged in here."""
    host = socket.gethostname()
    return Operator(name=name or os.environ.get("HORSIES_ACTOR") or f"{_user()}@{host}", host=host, via=via)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return str(os.getuid())
