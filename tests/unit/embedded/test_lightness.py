from __future__ import annotations

import subprocess
import sys


def test_import_loads_neither_asyncpg_nor_pydantic() -> None:
    script = "import sys, horsies.embedded; print(*{'asyncpg', 'pydantic', 'psutil', 'asyncio'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip() == ""
    )
