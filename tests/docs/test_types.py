"""Documented examples pass pyright in strict mode."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.cli import ROOT, program_of, write_files_of

DOCUMENTS = ("README.md", "docs/tasks.md", "docs/testing.md", "docs/tutorial.md", "docs/workflows.md")


def complaints_about(folders: list[Path], within: Path) -> list[str]:
    """All findings of one strict pyright run, because most of its time goes to our own types."""
    roots = [{"root": str(each), "extraPaths": [str(each), str(ROOT / "worker")]} for each in folders]
    config = {"typeCheckingMode": "strict", "executionEnvironments": roots}
    (within / "pyrightconfig.json").write_text(json.dumps(config))
    options = ["--pythonpath", sys.executable, "--outputjson", "--project", str(within)]
    ended = subprocess.run([sys.executable, "-m", "pyright", *options], capture_output=True, text=True)
    report = json.loads(ended.stdout)
    assert report["summary"]["filesAnalyzed"] >= len(folders)
    return [
        f"{each['file'].removeprefix(str(within))}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in report["generalDiagnostics"]
    ]


def test_examples_pass_strict_pyright(tmp_path: Path) -> None:
    for document in DOCUMENTS:
        folder = tmp_path / document.replace("/", "_").removesuffix(".md")
        folder.mkdir()
        write_files_of(document, folder)
        (folder / "examples_in_order.py").write_text(program_of(document))
    found = complaints_about(list(tmp_path.iterdir()), tmp_path)
    assert not found, "\n".join(found)
