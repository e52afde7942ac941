"""The modules that define an app's tasks: named, found by pattern, imported without sending anything."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import importlib
import importlib.util
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from horsies.app.suppression import sends_suppressed
from horsies.errors import ConfigurationError, ErrorCode, HorsiesError, SourceLocation

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
    with sends_suppressed():
        return [module for name in names if (module := _import_one(name)) is not None]


def is_path(name: str) -> bool:
    return name.endswith(".py") or "/" in name or "*" in name


def import_file(path: Path) -> ModuleType:
    """Import a file as a module of its own name, or the one that was imported from it before."""
    path = path.resolve()
    for module in tuple(sys.modules.values()):
        if getattr(module, "__file__", None) == str(path):
            return module
    name = path.stem
    if name in sys.modules:
        # Two files of one name are two modules; the path makes the second name unique and stable.
        name = f"{name}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # noqa: S101  # a .py file always has a loader
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_one(name: str) -> ModuleType | None:
    if is_path(name) and not Path(name).is_file():
        logger.warning("task module %s does not exist; skipped", name)
        return None
    try:
        return import_file(Path(name)) if is_path(name) else importlib.import_module(name)
    except HorsiesError:
        raise
    except Exception as error:
        raise module_error(name, error) from error


def module_error(name: str, error: Exception) -> ConfigurationError:
    """HRS-210 for a module that raised, with the line in it where it did."""
    place = error.__traceback__
    location = None
    while place is not None:
        file = place.tb_frame.f_code.co_filename
        if not file.startswith("<") and "importlib" not in file:
            location = SourceLocation(file, place.tb_lineno)
        place = place.tb_next
    return ConfigurationError(
        f"{name} cannot be imported: {type(error).__name__}: {error}",
        code=ErrorCode.MODULE_EXEC_ERROR,
        hint="the module must import cleanly by itself; try: python -c 'import …'",
        location=location,
    )
