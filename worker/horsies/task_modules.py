"""Imports the modules that define tasks: glob expansion and error collection."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import importlib
import importlib.util
import logging
import sys
import sysconfig
import traceback
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Self

from horsies.client.task import sends_suppressed
from horsies.errors import (
    ConfigurationError,
    ErrorCode,
    HorsiesError,
    MultipleValidationErrors,
    RegistryError,
    SourceLocation,
    TaskDefinitionError,
    WorkflowValidationError,
    raise_together,
)
from horsies.model.result import Err, Ok, Result, UnwrapError
from horsies.model.send import TaskSendError, TaskSendErrorCode

# Modules by name, path or pattern

DEFAULT_EXCLUDES = ("*_test.py", "test_*.py", "conftest.py")

logger = logging.getLogger("horsies.app")


def import_modules(names: Iterable[str]) -> list[ModuleType]:
    """Import modules by dotted name or path with sends suppressed; missing files are skipped with a warning."""
    modules: list[ModuleType] = []
    with sends_suppressed():
        for name in require_list(names, parameter="modules"):
            if is_missing_file(name):
                logger.warning("task module %s does not exist, skipped", name)
            else:
                modules.append(import_module_or_file(name))
    return modules


def expand_globs(patterns: Iterable[str], exclude: Sequence[str] | None = None) -> list[str]:
    """Return absolute paths of the matching `.py` files, without duplicates; dotted names are kept unchanged."""
    excluded = DEFAULT_EXCLUDES if exclude is None else require_list(exclude, parameter="exclude")
    modules: dict[str, None] = {}
    for pattern in require_list(patterns, parameter="patterns"):
        if not is_path(pattern):
            modules[pattern] = None
            continue
        for match in sorted(glob.glob(pattern, recursive=True)):  # noqa: PTH207  # patterns may be absolute
            path = Path(match).resolve()
            if path.suffix == ".py" and not any(fnmatch.fnmatch(path.name, mask) for mask in excluded):
                modules[str(path)] = None
    return list(modules)


def require_list(names: Iterable[str], *, parameter: str) -> list[str]:
    """Return the names as a list; raises HRS-206 for a string, which Python would iterate by character."""
    if isinstance(names, str):
        raise ConfigurationError(
            f"{parameter} must be a list, got the string {names!r}",
            code=ErrorCode.CLI_INVALID_ARGS,
            hint=f'use ["{names}"]',
            location=SourceLocation.of_caller(),
        )
    return list(names)


def is_missing_file(name: str) -> bool:
    return is_path(name) and not Path(name).is_file()


def is_path(name: str) -> bool:
    return name.endswith(".py") or "/" in name or "*" in name


def add_to_sys_path(folder: Path) -> None:
    """Make modules in `folder` importable, as if Python had been started there."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


# Importing user code by dotted name or file, with the location of errors

# File name prefixes of frames of the import itself: frozen modules, importlib and horsies.
_IMPORT_FRAMES = ("<", importlib.__file__, f"{Path(__file__).parent}/")
# Errors that already say what to change in a module.
_VALIDATION_ERRORS = (
    ConfigurationError,
    TaskDefinitionError,
    WorkflowValidationError,
    RegistryError,
    MultipleValidationErrors,
)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def import_module_or_file(name: str) -> ModuleType:
    """Import a dotted name or a `.py` file; raises all its errors together.

    An invalid definition does not stop the import, so later ones are checked too. Validation errors are raised
    unchanged, all others as HRS-210. A module with errors is not kept in `sys.modules`.
    """
    count_before = len(sys.modules)  # not their names: a reference to each would copy pages shared with other processes
    with collect_definition_errors() as errors:
        imported = _try_import(name)
    if errors:
        _forget_modules_after(count_before)
    raise_together(name, [*errors, *(imported.err() or ())])
    return imported.unwrap()


def _try_import(name: str) -> Result[ModuleType, tuple[HorsiesError, ...]]:
    try:
        return Ok(import_file(Path(name)) if is_path(name) else importlib.import_module(name))
    except _VALIDATION_ERRORS as error:
        return Err(error.faults)
    # User code may raise anything; a script without a main guard may call sys.exit().
    except (Exception, SystemExit) as error:  # noqa: BLE001
        return Err((_import_error(name, error),))


def import_file(path: Path) -> ModuleType:
    """Import a file under the name that other modules import it by; returns the same module the second time."""
    path = path.resolve()
    return _loaded_module(path) or _import_from_package(path) or _import_standalone(path)


def _loaded_module(path: Path) -> ModuleType | None:
    parts = path.parent.parts if path.stem == "__init__" else (*path.parent.parts, path.stem)
    names = ("__main__", _unique_name(path), *(".".join(parts[start:]) for start in range(1, len(parts))))
    # By name: looking at all modules would copy the pages that a child shares with other processes.
    modules = (sys.modules.get(name) for name in names)
    return next((module for module in modules if getattr(module, "__file__", None) == str(path)), None)


def _import_from_package(path: Path) -> ModuleType | None:
    """Import the file as part of its package; otherwise its siblings would import a second copy of the app."""
    folder, parts = path.parent, [] if path.stem == "__init__" else [path.stem]
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if folder == path.parent or not all(part.isidentifier() for part in parts):
        return None
    add_to_sys_path(folder)
    name = ".".join(parts)
    spec = importlib.util.find_spec(name)
    # Not if another package with this name was imported before.
    return importlib.import_module(name) if spec is not None and spec.origin == str(path) else None


def _import_standalone(path: Path) -> ModuleType:
    name = path.stem
    if name in sys.modules:
        name = _unique_name(path)  # another file has the same name
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


def _unique_name(path: Path) -> str:
    """A name with a hash of the path: unique and stable."""
    return f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def _forget_modules_after(count: int) -> None:
    """Remove user modules imported after so many, as Python does with a module that raises: they lack tasks."""
    for name in tuple(sys.modules)[count:]:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and not file.startswith((*_LIBRARIES, *_IMPORT_FRAMES)):
            module = sys.modules.pop(name)
            package, _, member = name.rpartition(".")
            # `from package import member` would still find it there.
            if getattr(sys.modules.get(package), member, None) is module:
                delattr(sys.modules[package], member)


def _import_error(name: str, error: BaseException) -> ConfigurationError:
    message = error.message if isinstance(error, HorsiesError) else error
    import_error = ConfigurationError(
        f"cannot import {name}: {type(error).__name__}: {message}",
        code=ErrorCode.MODULE_EXEC_ERROR,
        hint=_import_hint(name, error),
        location=_error_location(error),
    )
    import_error.__cause__ = error
    return import_error


def _import_hint(name: str, error: BaseException) -> str:
    match error:
        case UnwrapError(result=Err(error=TaskSendError(code=TaskSendErrorCode.SEND_SUPPRESSED))):
            return (
                "sends are suppressed while modules are imported; "
                "send from a function, or under if __name__ == '__main__':"
            )
        case _:
            command = f"python {name}" if is_path(name) else f"python -c 'import {name}'"
            return f"make sure that it can be imported on its own: {command}"


def _error_location(error: BaseException) -> SourceLocation | None:
    """Return the line of a syntax error, or the last line executed in user code rather than in a library."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return SourceLocation(error.filename, error.lineno)
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_IMPORT_FRAMES)
    ]
    user_frames = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    last = next(reversed(user_frames or frames), None)
    return None if last is None else SourceLocation(last.filename, last.lineno or 0)


# Invalid definitions, collected during an import so that all are reported together

_COLLECTED_ERRORS: ContextVar[list[HorsiesError] | None] = ContextVar("horsies_collected_errors", default=None)


class DefinitionPlaceholder:
    """Stands for an invalid task or workflow, so that the rest of its module can be imported and checked.

    Works as a decorator, task, node or spec: every call and every attribute returns the placeholder.
    """

    def __call__(self, *_args: object, **_kwargs: object) -> Self:
        return self

    def __getattr__(self, name: str) -> Self:
        if name.startswith("__"):
            raise AttributeError(name)  # do not pretend to implement protocols
        return self


@contextmanager
def collect_definition_errors() -> Generator[list[HorsiesError]]:
    """Collect the errors of invalid definitions inside the block instead of raising them; yields the list."""
    errors: list[HorsiesError] = []
    token = _COLLECTED_ERRORS.set(errors)
    try:
        yield errors
    finally:
        _COLLECTED_ERRORS.reset(token)


def record_or_raise(error: HorsiesError) -> DefinitionPlaceholder:
    """Record the error inside `collect_definition_errors`; raise it elsewhere."""
    errors = _COLLECTED_ERRORS.get()
    if errors is None:
        raise error
    errors.extend(error.faults)
    return DefinitionPlaceholder()
