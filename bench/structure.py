"""`make metrics`: figures about the structure of the code, and the files of the three walks (see `bench.walks`).

Private functions and forwarding functions are found in the syntax tree, by name. A private function has one call site
if its name is used once: in the whole product where only one function has that name, else in its class or module.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import statistics
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, cast

from bench.call_trace import PRODUCT, ROOT
from bench.walks import Walk, make_walks

LARGE_FILE = 720
SMALL_FILE = 60
FULL_FOLDER = 12
SHORT_HELPER = 8
LONG_TEST_NAME = 10
PERCENTILES = 10

UNSIZED = ("__init__.py", "__main__.py", "version.py")
ALIASES = Path("worker/horsies/core")

DIALECT = re.compile(
    r"\b((is|are) no [a-z]+[;,.:]|whoever|nobody|somebody|speaks? (for|of)|(is|are|was|were) told|has the turn|lest"
    r"|be rid of|came to an end|what is left of|(in|into|out of) (the|its|their|our) hands|another hand|is away|hears?"
    r"|heard|shall)\b",
    re.IGNORECASE,
)
PRAGMA = re.compile(r"#\s*(noqa|ruff:|pyright:|type:|!)")

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Scope: TypeAlias = ast.ClassDef | ast.Module


@dataclass(frozen=True)
class SourceFile:
    """A Python file, parsed."""

    path: Path
    """Relative to the repository."""
    text: str

    @classmethod
    def read(cls, path: Path) -> SourceFile:
        return cls(path.relative_to(ROOT), path.read_text())

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def has_a_size(self) -> bool:
        """Whether its size is a matter of design: not for files that only re-export or start something."""
        return self.path.name not in UNSIZED and not self.path.is_relative_to(ALIASES)

    @cached_property
    def functions(self) -> list[tuple[Function, Scope]]:
        """Every function, with the class or module that holds it."""
        found: list[tuple[Function, Scope]] = []

        def visit(node: ast.AST, scope: Scope) -> None:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, Function):
                    found.append((child, scope))
                visit(child, child if isinstance(child, ast.ClassDef) else scope)

        visit(self.tree, self.tree)
        return found

    def place(self, node: Function) -> str:
        return f"{self.path}:{node.lineno} {node.name}"


def read_files(*folders: str) -> list[SourceFile]:
    return [SourceFile.read(path) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def layout(product: Sequence[SourceFile], tests: Sequence[SourceFile]) -> dict[str, Any]:
    """All figures by name; lists name what an engineer may want to look at."""
    sized = [file for file in product if file.has_a_size]
    sizes = sorted(file.lines for file in sized)
    functions = sum(len(file.functions) for file in product)
    one_call = list(one_call_helpers(product))
    short = [place for place, length in one_call if length <= SHORT_HELPER]
    folders = Counter(str(file.path.parent) for file in product if file.path.name != "__init__.py")
    return {
        "modules": len(product),
        "modules without __init__": sum(folders.values()),
        "lines of Python": sum(file.lines for file in product),
        "lines per file, median": statistics.median(sizes),
        "lines per file, p90": statistics.quantiles(sizes, n=PERCENTILES)[-1],
        "lines per file, maximum": sizes[-1],
        f"files over {LARGE_FILE} lines": _by_size(file for file in sized if file.lines > LARGE_FILE),
        f"files under {SMALL_FILE} lines": _by_size(file for file in sized if file.lines < SMALL_FILE),
        f"folders with more than {FULL_FOLDER} files": [
            f"{folder} ({number})" for folder, number in sorted(folders.items()) if number > FULL_FOLDER
        ],
        "modules at the top of tui/horsies_tui": folders["tui/horsies_tui"],
        "class names defined more than once": repeated_classes(product),
        "functions": functions,
        "private functions with one call site": len(one_call),
        "their share of all functions, %": round(100 * len(one_call) / functions, 1),
        f"of these, up to {SHORT_HELPER} lines": short,
        "functions that only forward their arguments": [
            file.place(node) for file in product for node, _ in file.functions if is_forwarding(node)
        ],
        "docstrings in the old dialect": list(dialect_docstrings(product)),
        "comment lines per 100 code lines": comment_density(product),
        "TYPE_CHECKING blocks": sum(map(type_checking_blocks, product)),
        f"test names over {LONG_TEST_NAME} words": [
            file.place(node) for file in tests for node, _ in file.functions if _is_long_test_name(node.name)
        ],
        "modules in tests/support": sum(
            file.path.parent == Path("tests/support") and file.path.name != "__init__.py" for file in tests
        ),
    }


def one_call_helpers(files: Sequence[SourceFile]) -> Iterator[tuple[str, int]]:
    """Place and length of each private function whose name is used once."""
    defined = Counter(node.name for file in files for node, _ in file.functions)
    used_anywhere = Counter[str]()
    for file in files:
        used_anywhere.update(_names_used(file.nodes))
    for file in files:
        used_in = {scope: _names_used(ast.walk(scope)) for scope in {scope for _, scope in file.functions}}
        for node, scope in file.functions:
            if not _is_private(node.name):
                continue
            used = used_anywhere if defined[node.name] == 1 else used_in[scope]
            if used[node.name] == 1:
                yield file.place(node), (node.end_lineno or node.lineno) - node.lineno + 1


def is_forwarding(node: Function) -> bool:
    """Whether its body only returns the result of another call with the same arguments."""
    body = node.body[1:] if ast.get_docstring(node) else node.body
    if len(body) != 1 or not isinstance(body[0], ast.Return):
        return False
    call = body[0].value.value if isinstance(body[0].value, ast.Await) else body[0].value
    if not isinstance(call, ast.Call):
        return False
    # `b=b` passes on a parameter just as `b` does; any other keyword changes the call.
    given = [ast.unparse(each) for each in call.args]
    for each in call.keywords:
        value = ast.unparse(each.value)
        given.append(f"**{value}" if each.arg is None else value if value == each.arg else f"{each.arg}={value}")
    return sorted(given) == sorted(_parameters(node.args))


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if each.arg not in ("self", "cls"):
            yield each.arg
    if arguments.vararg:
        yield f"*{arguments.vararg.arg}"
    if arguments.kwarg:
        yield f"**{arguments.kwarg.arg}"


def repeated_classes(files: Sequence[SourceFile]) -> list[str]:
    """Names of classes at the top of modules; messages and rows inside other classes have those for context."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file in files:
        for node in file.tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(file.path))
    return [f"{name}: {', '.join(found)}" for name, found in sorted(places.items()) if len(found) > 1]


def dialect_docstrings(files: Sequence[SourceFile]) -> Iterator[str]:
    """Place and phrase of each docstring, of modules, classes and functions, that has one of the phrases."""
    for file in files:
        for node in file.nodes:
            if isinstance(node, ast.Module | ast.ClassDef | Function):
                found = DIALECT.search(ast.get_docstring(node) or "")
                if found:
                    yield f"{file.path}:{getattr(node, 'lineno', 1)} {found[0]!r}"


def comment_density(files: Sequence[SourceFile]) -> float:
    """Lines with a comment, pragmas aside, per 100 lines of code; docstrings and blank lines are neither."""
    comments = code = 0
    for file in files:
        code_lines: set[int] = set()
        docstrings = _docstring_lines(file)
        for token in tokenize.generate_tokens(io.StringIO(file.text).readline):
            if token.type == tokenize.COMMENT:
                comments += not PRAGMA.match(token.string)
            elif token.string.strip() and token.start[0] not in docstrings:
                code_lines.update(range(token.start[0], token.end[0] + 1))
        code += len(code_lines)
    return round(100 * comments / code, 1)


def type_checking_blocks(file: SourceFile) -> int:
    return sum(isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" for node in file.nodes)


def _by_size(files: Iterable[SourceFile]) -> list[str]:
    return [f"{file.path} ({file.lines})" for file in sorted(files, key=lambda file: file.lines)]


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _is_long_test_name(name: str) -> bool:
    return name.startswith("test_") and len(name.split("_")) - 1 > LONG_TEST_NAME


def _names_used(nodes: Iterable[ast.AST]) -> Counter[str]:
    """How often each name is used, alone (`name`) or of an object (`object.name`)."""
    return Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in nodes
        if isinstance(node, ast.Name | ast.Attribute)
    )


def _docstring_lines(file: SourceFile) -> set[int]:
    """Of all strings that stand alone: docstrings of modules, classes, functions and attributes."""
    lines: set[int] = set()
    for node in file.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def print_layout(figures: dict[str, Any], *, most: int | None) -> None:
    for name, value in figures.items():
        if not isinstance(value, list):
            print(f"{name}: {value:,}")
            continue
        lines = cast("list[str]", value)
        print(f"{name}: {len(lines)}")
        for line in lines[:most]:
            print(f"    {line}")
        if left := lines[most:] if most else []:
            print(f"    … and {len(left)} more (--all lists them)")


def print_walk(walk: Walk) -> None:
    goal = "" if walk.goal is None else f" (goal: at most {walk.goal})"
    print(f"\n{walk.name}: {len(walk.files)} files{goal}")
    for number, (file, processes) in enumerate(walk.files.items(), 1):
        print(f"  {number:>3}  {file}  ({', '.join(processes)})")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.structure", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument("--all", action="store_true", help="print lists in full [default: the first 12 lines]")
    parser.add_argument("--no-walks", action="store_true", help="leave out the walks, which take half a minute")
    options = parser.parse_args()
    figures = layout(read_files(*PRODUCT), read_files("tests"))
    if options.json:
        walks = [] if options.no_walks else make_walks()
        said = {walk.name: {"files": len(walk.files), "goal": walk.goal, "in_order": walk.files} for walk in walks}
        print(json.dumps({"layout": figures, "walks": said}, indent=2))
        return
    print_layout(figures, most=None if options.all else 12)
    for walk in [] if options.no_walks else make_walks():
        print_walk(walk)


if __name__ == "__main__":
    main()
