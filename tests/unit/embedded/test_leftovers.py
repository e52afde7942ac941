from __future__ import annotations

import subprocess
from pathlib import Path

from horsies.embedded.server import server_processes


def test_a_program_that_merely_stands_in_the_data_folder_is_no_server(tmp_path: Path) -> None:
    visitor = subprocess.Popen(["sleep", "60"], cwd=tmp_path)
    try:
        assert server_processes(tmp_path) == []
    finally:
        visitor.kill()
        visitor.wait()
