"""Where the application and its tasks are found."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from horsies.errors import ConfigurationError, ErrorCode
from horsies.model.settings.base import Settings
from horsies.model.settings.wording import Says, shown

_NAME = r"[^\W\d]\w*"
_MODULE = re.compile(rf"{_NAME}(?:\.{_NAME})*(?::{_NAME})?")
_FILE = re.compile(rf"(?P<path>[^:\x00-\x1f]*[^:/\x00-\x1f]\.py)(?::{_NAME})?")
_FORMS = "package.module:app, package.module, path/file.py:app or path/file.py"


def _well_formed(locator: str) -> str:
    """The locator as it came; whether anything is found there is not looked into, for that runs code of the user's."""
    file = _FILE.fullmatch(locator)
    if file is None and _MODULE.fullmatch(locator) is None:
        raise _invalid(f"must be {_FORMS}{shown(locator)}", hint=_likely(locator))
    if file and "/" not in file["path"] and file["path"].count(".") > 1:
        hint = f"write {file['path'].removesuffix('.py')} for the module, ./{file['path']} for the file"
        raise _invalid(f"{file['path']!r} may mean a module or a file", hint=hint)
    return locator


def _likely(locator: str) -> str:
    if locator.isidentifier():
        return f"write {locator}:app for the app in a module, {locator}.py for a file"
    return "for example my_package.tasks:app, where tasks.py says app = Horsies()"


def _invalid(message: str, *, hint: str) -> ConfigurationError:
    return ConfigurationError(message, code=ErrorCode.WORKER_INVALID_LOCATOR, hint=hint)


class ProjectConfig(Settings):
    """The locator of the app (`package.module:app`) and the modules that define its tasks."""

    fault_code: ClassVar[ErrorCode | None] = ErrorCode.WORKER_INVALID_LOCATOR

    locator: Annotated[Annotated[str, AfterValidator(_well_formed)] | None, Says(_FORMS)] = None
    modules: Annotated[list[str], Says("a list of module names or .py files")] = Field(default_factory=list[str])
