"""Finding the app that a command works for.

A locator names it: `package.module:app` or `path/file.py:app`, or the module or file alone where it holds one app only.
It counts from the working folder, or, where a horsies.toml that was merely found gives it, from that file's folder:
in whichever folder of a project a command runs, the project's app is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from horsies.app import Horsies
from horsies.config import LoadedSettings, Precedence, working_folder
from horsies.errors import ConfigurationError, ErrorCode
from horsies.task_modules import add_to_sys_path, import_module_or_file, is_missing_file, is_path, sends_suppressed


@dataclass(frozen=True, slots=True, kw_only=True)
class Locator:
    """Where an app is: a dotted module or a file, and its name there where one was given."""

    module: str
    attribute: str | None

    @classmethod
    def parse(cls, text: str) -> Locator:
        """HRS-206 for a text that could not name an app, whatever modules there are."""
        module, colon, attribute = text.partition(":")
        if not module.strip() or (colon and not attribute.isidentifier()):
            raise _invalid_locator(f"{text!r} names no app", hint="write package.module:app or path/file.py:app")
        if module.endswith(".py") and "/" not in module and "." in module.removesuffix(".py"):
            hint = f"write {module.removesuffix('.py')} for the module, ./{module} for the file"
            raise _invalid_locator(f"{module!r} may mean a module or a file", hint=hint)
        return cls(module=module, attribute=attribute or None)


def import_app_with_tasks(locator: str | None, settings: LoadedSettings) -> Horsies:
    """The app at `locator`, or at `app.locator` of the settings, with all of its tasks; nothing is sent meanwhile."""
    app = import_app(locator, settings)
    app.import_task_modules()
    return app


def import_app(locator: str | None, settings: LoadedSettings) -> Horsies:
    """The app alone: its own module is imported, its task modules are not.

    HRS-206 for a locator that makes no sense, HRS-207 for one that leads to no app, HRS-210 for a module that raises.
    """
    text = locator or settings.locator
    if text is None:
        raise _invalid_locator(
            "no app is named", hint="give it as package.module:app, or set app.locator in horsies.toml"
        )
    place, folder = Locator.parse(text), _base_folder(text, settings)
    add_to_sys_path(folder)
    return _app_in(_import_app_module(place, folder), place)


def _base_folder(text: str, settings: LoadedSettings) -> Path:
    """What the locator counts from."""
    # Compared by its text, for a worker hands the locator of its settings on to its children.
    is_found = (
        settings.origin_of(("project", "locator")).precedence is Precedence.DISCOVERED_FILE and text == settings.locator
    )
    return settings.file.parent if is_found and settings.file else working_folder()


def _import_app_module(place: Locator, folder: Path) -> ModuleType:
    name = str(folder / place.module) if is_path(place.module) else place.module
    if is_missing_file(name):
        raise _app_not_found(f"there is no file {place.module}", hint=f"the path counts from {folder}")
    try:
        with sends_suppressed():
            return import_module_or_file(name)
    except ConfigurationError as error:
        if _is_missing_module(place, error.__cause__):
            hint = f"modules are looked for in {folder} and among the installed packages"
            raise _app_not_found(f"there is no module {place.module}", hint=hint) from None
        raise


def _is_missing_module(place: Locator, cause: BaseException | None) -> bool:
    """Whether the named module itself was not found, rather than one that it imports."""
    if is_path(place.module) or not isinstance(cause, ModuleNotFoundError):
        return False
    return f"{place.module}.".startswith(f"{cause.name}.")


def _app_in(module: ModuleType, place: Locator) -> Horsies:
    if place.attribute is not None:
        return _app_called(place.attribute, module, place)
    # One app under two names is one app.
    apps = {id(value): name for name, value in vars(module).items() if isinstance(value, Horsies)}
    match list(apps.values()):
        case [name]:
            return getattr(module, name)
        case []:
            raise _app_not_found(f"there is no app in {place.module}", hint="an app is made with app = Horsies()")
        case names:
            choice = " or ".join(f"{place.module}:{name}" for name in names)
            raise _app_not_found(f"there are {len(names)} apps in {place.module}", hint=f"name one: {choice}")


def _app_called(name: str, module: ModuleType, place: Locator) -> Horsies:
    missing = object()
    found: Any = getattr(module, name, missing)
    if isinstance(found, Horsies):
        return found
    names = [f"{place.module}:{each}" for each, value in vars(module).items() if isinstance(value, Horsies)]
    hint = f"did you mean {' or '.join(names)}?" if names else "an app is made with app = Horsies()"
    if found is missing:
        raise _app_not_found(f"there is no {name!r} in {place.module}", hint=hint)
    raise _app_not_found(f"{name!r} in {place.module} is no app but of type {type(found).__qualname__}", hint=hint)


def _invalid_locator(message: str, *, hint: str) -> ConfigurationError:
    return ConfigurationError(message, code=ErrorCode.CLI_INVALID_ARGS, hint=hint)


def _app_not_found(message: str, *, hint: str) -> ConfigurationError:
    return ConfigurationError(message, code=ErrorCode.WORKER_INVALID_LOCATOR, hint=hint)
