"""Imports the app that a command works with, given a locator.

A locator is `package.module:app` or `path/file.py:app`; `:app` may be omitted if the module has only one app. It is
relative to the working directory; one from a discovered horsies.toml is relative to the folder of that file, so a
command finds the same app in every folder of a project.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from horsies.app import Horsies
from horsies.client.task import sends_suppressed
from horsies.config import LoadedSettings, Precedence, working_folder
from horsies.errors import ConfigurationError, ErrorCode
from horsies.model.settings.app import Locator
from horsies.task_modules import add_to_sys_path, import_module_or_file, is_missing_file, is_path

_CREATE_HINT = "create an app with app = Horsies()"


def import_app_with_tasks(locator: str | None, settings: LoadedSettings) -> Horsies:
    """Import the app at `locator`, or at `app.locator` of the settings, and its task modules; sends are suppressed."""
    app = import_app(locator, settings)
    app.import_task_modules()
    return app


def import_app(locator: str | None, settings: LoadedSettings) -> Horsies:
    """Import the app, but not its task modules.

    Raises HRS-206 for a malformed locator, HRS-207 if there is no such app, HRS-210 if the module raises.
    """
    text = locator or settings.locator
    if text is None:
        hint = "use package.module:app, or set app.locator in horsies.toml"
        raise ConfigurationError("no app given", code=ErrorCode.CLI_INVALID_ARGS, hint=hint)
    parsed, folder = Locator.parse(text), app_folder(text, settings)
    add_to_sys_path(folder)
    return _find_app(_import_app_module(parsed, folder), parsed)


def app_folder(locator: str | None, settings: LoadedSettings) -> Path:
    """Return the folder that a locator is relative to."""
    is_discovered = settings.origin_of(("project", "locator")).precedence is Precedence.DISCOVERED_FILE
    # Compared by text, because a worker passes the locator of its settings to its children as an argument.
    uses_file = is_discovered and locator in (None, settings.locator)
    return settings.file.parent if uses_file and settings.file else working_folder()


def _import_app_module(locator: Locator, folder: Path) -> ModuleType:
    name = str(folder / locator.module) if is_path(locator.module) else locator.module
    if is_missing_file(name):
        raise _app_not_found(f"no such file: {locator.module}", hint=f"the path is relative to {folder}")
    try:
        with sends_suppressed():
            return import_module_or_file(name)
    except ConfigurationError as error:
        if _is_missing_module(locator, error.__cause__):
            hint = f"modules are searched in {folder} and the installed packages"
            raise _app_not_found(f"no module named {locator.module}", hint=hint) from None
        raise


def _is_missing_module(locator: Locator, cause: BaseException | None) -> bool:
    """Whether the app's module itself was not found, rather than one that it imports."""
    if is_path(locator.module) or not isinstance(cause, ModuleNotFoundError):
        return False
    return f"{locator.module}.".startswith(f"{cause.name}.")  # for a.b.c, Python may report a or a.b as missing


def _find_app(module: ModuleType, locator: Locator) -> Horsies:
    if locator.attribute is not None:
        return _find_named_app(locator.attribute, module, locator)
    # By id, because one app may have two names.
    apps = {id(value): name for name, value in vars(module).items() if isinstance(value, Horsies)}
    match list(apps.values()):
        case [name]:
            return getattr(module, name)
        case []:
            raise _app_not_found(f"no app in {locator.module}", hint=_CREATE_HINT)
        case names:
            choice = " or ".join(f"{locator.module}:{name}" for name in names)
            raise _app_not_found(f"{len(names)} apps in {locator.module}", hint=f"choose one: {choice}")


def _find_named_app(name: str, module: ModuleType, locator: Locator) -> Horsies:
    missing = object()
    value: Any = getattr(module, name, missing)
    if isinstance(value, Horsies):
        return value
    apps = [f"{locator.module}:{other}" for other, value in vars(module).items() if isinstance(value, Horsies)]
    hint = f"did you mean {' or '.join(apps)}?" if apps else _CREATE_HINT
    if value is missing:
        raise _app_not_found(f"no {name!r} in {locator.module}", hint=hint)
    kind = type(value).__qualname__
    raise _app_not_found(f"{locator.module}:{name} has type {kind}, not a Horsies app", hint=hint)


def _app_not_found(message: str, *, hint: str) -> ConfigurationError:
    return ConfigurationError(message, code=ErrorCode.WORKER_INVALID_LOCATOR, hint=hint)
