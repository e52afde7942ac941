"""The examples in our documents, taken out of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# (\S+\.\w+)\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A block of a document."""

    document: str
    language: str
    text: str
    line: int
    """The line before its first."""

    @property
    def file_name(self) -> str | None:
        """The file that the block stands for, named in a comment on its first line."""
        found = _FILE_NAME.match(self.text)
        return found[1] if found else None

    def run_in(self, namespace: dict[str, object]) -> None:
        """Run it; a traceback names the document and the line in it."""
        code = compile("\n" * self.line + self.text, self.document, "exec")
        exec(code, namespace)  # noqa: S102  # that is what examples are for


def examples_of(document: str, *, language: str | None = None) -> Iterator[Example]:
    """The blocks of a document, or those in one language."""
    text = (ROOT / document).read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start(2))
        if language in (None, found[1]):
            yield Example(document=document, language=found[1], text=found[2], line=line)


def program_of(document: str) -> str:
    """The Python examples that stand for no file, as one program in which each line has its number in the document."""
    lines: list[str] = []
    for example in examples_of(document, language="python"):
        if example.file_name is None:
            lines += [""] * (example.line - len(lines)) + example.text.splitlines()
    return "\n".join(lines) + "\n"


def write_files_of(document: str, folder: Path) -> list[str]:
    """Write each example that stands for a file into `folder`; returns their names."""
    named = {each.file_name: each.text for each in examples_of(document) if each.file_name is not None}
    for name, text in named.items():
        (folder / name).write_text(text)
    return list(named)
