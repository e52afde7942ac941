"""The modules that define an app's tasks: named, found by pattern, imported without sending anything."""

from __future__ import annotations

import fnmatch
import glob
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from horsies.app.importing import import_one, is_path
from horsies.app.suppression import sends_suppressed
from horsies.errors import ConfigurationError, ErrorCode, SourceLocation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType

NOT_TASKS = ("*_test.py", "test_*.py", "conftest.py")

logger = logging.getLogger("horsies.app")


def listed(names: Iterable[str], *, what: str) -> list[str]:
    """The names as a list; HRS-206 for a text, which Python would take letter by letter."""
    if isinstance(names, str):
        raise ConfigurationError(
            f"{what} must be a list, got the text {names!r}",
            code=ErrorCode.CLI_INVALID_ARGS,
            hint=f'write ["{names}"]',
            location=SourceLocation.of_caller(),
        )
    return list(names)


def expand_globs(patterns: Iterable[str], exclude: Sequence[str] | None = None) -> list[str]:
    """Absolute paths of the `.py` files that match, each once, sorted within a pattern; dotted names pass through."""
    left_out = NOT_TASKS if exclude is None else listed(exclude, what="exclude")
    found: dict[str, None] = {}
    for pattern in listed(patterns, what="patterns"):
        if not is_path(pattern):
            found[pattern] = None
            continue
        for match in sorted(glob.glob(pattern, recursive=True)):  # noqa: PTH207  # patterns may be absolute
            path = Path(match).resolve()
            if path.suffix == ".py" and not any(fnmatch.fnmatch(path.name, each) for each in left_out):
                found[str(path)] = None
    return list(found)


def import_modules(names: Iterable[str]) -> list[ModuleType]:
    """Import modules by dotted name or path, sends suppressed; a missing file is a warning, a raising one HRS-210."""
    found: list[ModuleType] = []
    with sends_suppressed():
        for name in listed(names, what="modules"):
            if is_missing_file(name):
                logger.warning("task module %s does not exist; skipped", name)
            else:
                found.append(import_one(name))
    return found


def is_missing_file(name: str) -> bool:
    return is_path(name) and not Path(name).is_file()
