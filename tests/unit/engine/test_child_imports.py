"""What a child and its fork server import: each module costs memory, where children are not forked in every process."""

from __future__ import annotations

import json
import subprocess
import sys

CHILD = "import horsies.engine.child.__main__"
APP = "from horsies import Horsies, TaskError, TaskResult\napp = Horsies()\napp.close()"


def modules_after(code: str) -> set[str]:
    """The modules that a new interpreter has loaded after running this code."""
    program = f"import sys\n{code}\nimport json\nprint(json.dumps(list(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    return set(json.loads(output))


def test_a_child_loads_only_what_runs_tasks() -> None:
    loaded = modules_after(CHILD)
    horsies_parts = {name.split(".")[1] for name in loaded if name.startswith("horsies.")}
    assert not horsies_parts & {"app", "client", "embedded", "recovery", "store", "workflows"}
    assert not loaded & {"asyncio", "asyncpg", "psutil", "uuid_utils", "typer", "rich"}


def test_an_app_that_sends_nothing_loads_neither_store_nor_driver() -> None:
    loaded = modules_after(f"{CHILD}\nimport horsies.discover\n{APP}")
    assert not loaded & {"asyncio", "asyncpg", "psutil", "horsies.client.broker", "horsies.client.delivery"}
    assert not [name for name in loaded if name.startswith(("horsies.store", "horsies.embedded"))]


def test_the_fork_server_loads_only_what_children_need() -> None:
    loaded = modules_after("from horsies.engine.pool import fork_server\nfork_server._preload()")
    assert {"pydantic", "horsies.app", "horsies.engine.child.runner", "horsies.engine.child.coroutines"} <= loaded
    assert not loaded & {"asyncpg", "psutil", "typer", "horsies.client.broker", "horsies.engine.worker"}
    assert not [name for name in loaded if name.startswith(("horsies.store", "horsies.embedded", "horsies.workflows"))]
