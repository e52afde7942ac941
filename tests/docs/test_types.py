"""The examples in our documents are clean for those who check types strictly."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.documents import ROOT, program_of, write_files_of

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENTS = ("README.md", "docs/tasks.md", "docs/testing.md", "docs/workflows.md")


def complaints_about(folder: Path) -> list[str]:
    """What pyright says in strict mode, each with its place."""
    paths = [str(folder), str(ROOT / "worker")]
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", "extraPaths": paths}))
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--pythonpath",
        sys.executable,
        "--outputjson",
        "--project",
        str(folder),
    ]
    report = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    assert report["summary"]["filesAnalyzed"] > 0
    return [
        f"{each['file'].removeprefix(str(folder))}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in report["generalDiagnostics"]
    ]


def test_the_examples_pass_pyright_in_strict_mode(tmp_path: Path) -> None:
    for document in DOCUMENTS:
        folder = tmp_path / document.replace("/", "_").removesuffix(".md")
        folder.mkdir()
        write_files_of(document, folder)
        (folder / "examples_in_order.py").write_text(program_of(document))
    found = [line for folder in tmp_path.iterdir() for line in complaints_about(folder)]
    assert not found, "\n".join(found)
