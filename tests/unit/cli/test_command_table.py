from __future__ import annotations

from horsies_ops.cli.options import COMMANDS, SERVICES


def test_every_service_is_a_command() -> None:
    assert COMMANDS.keys() >= SERVICES
