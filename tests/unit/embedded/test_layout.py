from __future__ import annotations

from pathlib import Path

import pytest

from horsies.embedded.layout import ClusterPaths


def test_url_has_role_database_and_socket_folder() -> None:
    assert ClusterPaths(Path("/srv/a b")).url == "postgresql://horsies@/horsies?host=/srv/a%20b/socket"


@pytest.mark.parametrize("folder", [Path("/srv") / ("x" * 100), Path("/srv") / ("ü" * 50), Path("/srv/a,b")])
def test_unusable_socket_path_is_replaced_by_a_short_one(folder: Path) -> None:
    short = ClusterPaths(folder).socket_folder
    assert short.parent == Path("/tmp")
    assert short == ClusterPaths(folder).socket_folder
    assert short != ClusterPaths(folder / "other").socket_folder


def test_longest_usable_socket_path_is_kept() -> None:
    longest = Path("/" + "x" * (103 - len("//socket/.s.PGSQL.5432")))
    assert ClusterPaths(longest).socket_folder == longest / "socket"
