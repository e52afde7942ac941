"""The documentation site builds without a warning, contains both references and loads nothing from other hosts."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from pathlib import Path

import pytest

import horsies
import horsies_ops
from horsies_ops.cli.options import COMMANDS
from tests.support.cli import ROOT
from tests.support.databases import CLUSTER_FOLDER

pytestmark = pytest.mark.timeout(600)  # the build takes 15 s of CPU


@pytest.fixture(scope="module")
def site() -> Path:
    """The site, built with the command of `make site` by the first test process that needs it."""
    folder = Path(os.environ[CLUSTER_FOLDER], "documentation")
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "is_built").exists():
            _build(folder)
            (folder / "is_built").touch()
    return folder / "site"


def _build(folder: Path) -> None:
    recipe = subprocess.run(["make", "-n", "site"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (command,) = [line for line in recipe.splitlines() if "sphinx" in line]
    built = subprocess.run(
        ["sh", "-c", command.replace("build/", f"{folder}/")], cwd=ROOT, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr


def test_references_contain_every_public_name_and_command(site: Path) -> None:
    api, commands = ((site / "docs" / page).read_text() for page in ("api.html", "cli.html"))
    names = [f"{module.__name__}.{name}" for module in (horsies, horsies_ops) for name in module.__all__]
    assert [name for name in names if f'id="{name}"' not in api and "__" not in name] == []
    assert [name for name in COMMANDS if f'id="horsies-{name}"' not in commands] == []


def test_site_loads_nothing_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    loaded = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=\"(?:https?:)?//")
    assert [page.name for page in pages if loaded.search(page.read_text())] == []
    styles = "".join(style.read_text() for style in site.rglob("*.css"))
    assert not re.search(r"url\([\"']?(?:https?:)?//|@import", styles)


def test_start_page_leads_to_the_contents(site: Path) -> None:
    target = re.search(r"url=([^\"]+)\"", (site / "index.html").read_text())
    assert target is not None
    assert (site / target[1]).exists()


def test_wide_code_wraps_on_every_page(site: Path) -> None:
    pages = [page for page in site.rglob("*.html") if page != site / "index.html"]
    assert [page.name for page in pages if "site.css" not in page.read_text()] == []
    assert ".highlight pre { white-space: pre-wrap;" in (site / "_static" / "site.css").read_text()
