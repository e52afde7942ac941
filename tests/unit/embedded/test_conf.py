from __future__ import annotations

import stat
from pathlib import Path

from horsies.embedded.layout import server_settings, write_conf


def test_durability_can_be_switched_off() -> None:
    names = ("fsync", "synchronous_commit", "full_page_writes")
    durable = server_settings(Path("/s"), durable=True, extra={})
    fast = server_settings(Path("/s"), durable=False, extra={})
    assert ({durable[name] for name in names}, {fast[name] for name in names}) == ({"on"}, {"off"})


def test_extra_settings_override_ours() -> None:
    assert server_settings(Path("/s"), durable=True, extra={"max_connections": "7"})["max_connections"] == "7"


def test_conf_values_are_escaped(tmp_path: Path) -> None:
    write_conf(tmp_path / "horsies.conf", {"cluster_name": "it's a \\ test"})
    assert (tmp_path / "horsies.conf").read_text().splitlines()[1:] == ["cluster_name = 'it''s a \\\\ test'"]


def test_conf_is_readable_for_the_server_account(tmp_path: Path) -> None:
    write_conf(tmp_path / "horsies.conf", {})
    assert stat.S_IMODE((tmp_path / "horsies.conf").stat().st_mode) == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["horsies.conf"]
