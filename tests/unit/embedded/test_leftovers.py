from __future__ import annotations

import subprocess
from pathlib import Path

from horsies.embedded.server import server_processes


def test_other_programs_in_the_data_folder_are_ignored(tmp_path: Path) -> None:
    visitor = subprocess.Popen(["sleep", "60"], cwd=tmp_path)
    try:
        assert server_processes(tmp_path) == []
    finally:
        visitor.kill()
        visitor.wait()
