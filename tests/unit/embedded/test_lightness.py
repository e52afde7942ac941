from __future__ import annotations

import subprocess
import sys


def test_importing_the_package_loads_neither_driver_nor_validation() -> None:
    script = "import sys, horsies.embedded; print(*{'asyncpg', 'pydantic', 'psutil', 'asyncio'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip() == ""
    )
