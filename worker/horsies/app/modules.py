"""The modules that define an app's tasks: named, found by pattern, imported without sending anything."""

from __future__ import annotations

import fnmatch
import glob
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from horsies.app.importing import import_one, is_path
from horsies.app.suppression import sends_suppressed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType

NOT_TASKS = ("*_test.py", "test_*.py", "conftest.py")

logger = logging.getLogger("horsies.app")


def expand_globs(patterns: Iterable[str], exclude: Sequence[str] | None = None) -> list[str]:
    """Absolute paths of the `.py` files that match, each once, sorted within a pattern; dotted names pass through."""
    left_out = NOT_TASKS if exclude is None else exclude
    found: dict[str, None] = {}
    for pattern in patterns:
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
        for name in names:
            if is_missing_file(name):
                logger.warning("task module %s does not exist; skipped", name)
            else:
                found.append(import_one(name))
    return found


def is_missing_file(name: str) -> bool:
    return is_path(name) and not Path(name).is_file()
