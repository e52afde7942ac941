"""The modules that define an app's tasks: named, found by pattern, imported without sending anything."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import importlib
import importlib.util
import logging
import os
import sys
import sysconfig
import traceback
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Self

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

# Tasks that cannot be defined: noted while a module is imported, so that all of them are told at once.

_COLLECTED_ERRORS: ContextVar[list[HorsiesError] | None] = ContextVar("horsies_noted_refusals", default=None)


class DefinitionPlaceholder:
    """Takes the place of a task that was refused, so that the rest of its module can be run and looked at.

    It is a decorator, a task and whatever comes of one: every call and every attribute gives it again.
    """

    def __call__(self, *_args: object, **_kwargs: object) -> Self:
        return self

    def __getattr__(self, name: str) -> Self:
        if name.startswith("__"):
            raise AttributeError(name)  # protocols that it does not follow
        return self


@contextmanager
def collect_definition_errors() -> Generator[list[HorsiesError]]:
    """Inside the block a refused definition does not raise; yields the faults, in the order in which they come."""
    noted: list[HorsiesError] = []
    token = _COLLECTED_ERRORS.set(noted)
    try:
        yield noted
    finally:
        _COLLECTED_ERRORS.reset(token)


def record_or_raise(error: HorsiesError) -> DefinitionPlaceholder:
    """Note the error where refusals are noted; raise it everywhere else."""
    noted = _COLLECTED_ERRORS.get()
    if noted is None:
        raise error
    noted.extend(error.faults)
    return DefinitionPlaceholder()


# Importing code of the user's, by dotted name or by file, so that whatever goes wrong says where.

# Frames of the import itself: frozen ones, importlib's, and ours.
_IMPORT_FRAMES = ("<", importlib.__file__, f"{Path(__file__).parent}/")
# Errors that say themselves what in a module must change.
_VALIDATION_ERRORS = (
    ConfigurationError,
    TaskDefinitionError,
    WorkflowValidationError,
    RegistryError,
    MultipleValidationErrors,
)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def is_path(name: str) -> bool:
    return name.endswith(".py") or "/" in name or "*" in name


def add_to_sys_path(folder: Path) -> None:
    """Let modules in `folder` be imported by their names, as if Python had been started there."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def import_module_or_file(name: str) -> ModuleType:
    """Import a dotted name or a `.py` file; whatever is wrong in it is raised together.

    A task that cannot be defined does not end the import, so that those after it are looked at as well. Findings of
    ours pass as they are, all other errors become HRS-210. A module with faults is not kept.
    """
    known = frozenset(sys.modules)
    with collect_definition_errors() as refused:
        imported = _try_import(name)
    if refused:
        _forget_modules_since(known)
    raise_together(name, [*refused, *(imported.err() or ())])
    return imported.unwrap()


def _try_import(name: str) -> Result[ModuleType, tuple[HorsiesError, ...]]:
    try:
        return Ok(import_file(Path(name)) if is_path(name) else importlib.import_module(name))
    except _VALIDATION_ERRORS as error:
        return Err(error.faults)
    # The user's code, which may raise anything; a script without its main guard may well end in sys.exit().
    except (Exception, SystemExit) as error:  # noqa: BLE001
        return Err((_import_error(name, error),))


def import_file(path: Path) -> ModuleType:
    """Import a file under the name that other modules know it by; a second time gives the same module."""
    path = path.resolve()
    known = next((each for each in tuple(sys.modules.values()) if getattr(each, "__file__", None) == str(path)), None)
    return known or _import_from_package(path) or _import_alone(path)


def _import_from_package(path: Path) -> ModuleType | None:
    """The file as a member of its package, or the app in it would be another one than its siblings import."""
    folder, parts = path.parent, [] if path.stem == "__init__" else [path.stem]
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if folder == path.parent or not all(part.isidentifier() for part in parts):
        return None
    add_to_sys_path(folder)
    name = ".".join(parts)
    spec = importlib.util.find_spec(name)
    # A package of that name which was imported before, from elsewhere, keeps it.
    return importlib.import_module(name) if spec is not None and spec.origin == str(path) else None


def _import_alone(path: Path) -> ModuleType:
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


def _forget_modules_since(known: Collection[str]) -> None:
    """Let go of the user's modules that came meanwhile, as Python does of one that raises: they lack tasks."""
    for name in sys.modules.keys() - known:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and not file.startswith((*_LIBRARIES, *_IMPORT_FRAMES)):
            module = sys.modules.pop(name)
            package, _, member = name.rpartition(".")
            # `from package import member` would find it there.
            if getattr(sys.modules.get(package), member, None) is module:
                delattr(sys.modules[package], member)


def _import_error(name: str, error: BaseException) -> ConfigurationError:
    said = error.message if isinstance(error, HorsiesError) else error
    told = ConfigurationError(
        f"{name} cannot be imported: {type(error).__name__}: {said}",
        code=ErrorCode.MODULE_EXEC_ERROR,
        hint=_import_hint(name, error),
        location=_error_location(error),
    )
    told.__cause__ = error
    return told


def _import_hint(name: str, error: BaseException) -> str:
    match error:
        case UnwrapError(result=Err(error=TaskSendError(code=TaskSendErrorCode.SEND_SUPPRESSED))):
            return "sends are off while modules are imported; send from a function, or under if __name__ == '__main__':"
        case _:
            alone = f"python {name}" if is_path(name) else f"python -c 'import {name}'"
            return f"it must import cleanly by itself; try: {alone}"


def _error_location(error: BaseException) -> SourceLocation | None:
    """The line that does not parse, or the last one that ran in code of the user's rather than in a library's."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return SourceLocation(error.filename, error.lineno)
    frames = [
        each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(_IMPORT_FRAMES)
    ]
    own = [each for each in frames if not each.filename.startswith(_LIBRARIES)]
    place = next(reversed(own or frames), None)
    return None if place is None else SourceLocation(place.filename, place.lineno or 0)


# Switching sends off: while modules are imported, in checks, and wherever a program asks for it.

SUPPRESS_VARIABLE = b"HORSIES_SUPPRESS_SENDS"

# What os.environ is a view of. Asked at every send, it says at once that nothing is set; the view takes 2 µs to.
_ENVIRONMENT: Mapping[bytes, bytes] = getattr(os.environ, "_data", os.environb)


class SendSuppression:
    """Whether this process may send; importing counts for every app of the process."""

    imports_under_way = 0

    def __init__(self) -> None:
        self.is_requested = False

    def is_on(self) -> bool:
        return self.is_requested or SendSuppression.imports_under_way > 0 or _ENVIRONMENT.get(SUPPRESS_VARIABLE) == b"1"


@contextmanager
def sends_suppressed() -> Generator[None]:
    """No send of any app in this process goes out inside this block."""
    SendSuppression.imports_under_way += 1
    try:
        yield
    finally:
        SendSuppression.imports_under_way -= 1


DEFAULT_EXCLUDES = ("*_test.py", "test_*.py", "conftest.py")

logger = logging.getLogger("horsies.app")


def require_list(names: Iterable[str], *, what: str) -> list[str]:
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
    left_out = DEFAULT_EXCLUDES if exclude is None else require_list(exclude, what="exclude")
    found: dict[str, None] = {}
    for pattern in require_list(patterns, what="patterns"):
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
        for name in require_list(names, what="modules"):
            if is_missing_file(name):
                logger.warning("task module %s does not exist; skipped", name)
            else:
                found.append(import_module_or_file(name))
    return found


def is_missing_file(name: str) -> bool:
    return is_path(name) and not Path(name).is_file()
