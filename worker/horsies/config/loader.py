"""Merges the settings of all sources by precedence and validates them; every value keeps its origin."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from horsies.config.keys import KEYS, AllSettings, KeyPath
from horsies.config.project import discover_file, find_project, in_project
from horsies.config.sources import (
    DEFAULT_ORIGIN,
    SCHEDULES,
    GivenSettings,
    Origin,
    Precedence,
    explicit_values,
    read_config_file,
    working_folder,
)
from horsies.errors import ConfigurationError, raise_together
from horsies.model.settings import (
    AppConfig,
    Fault,
    LogConfig,
    ProjectConfig,
    ScheduleConfig,
    Settings,
    TuiConfig,
    WorkerConfig,
    WorkerSettings,
)
from horsies.model.settings.base import SettingPath
from horsies.model.text import format_path


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    """The settings of every section, the file they were read from, and the origin of each value.

    `origins` has an entry for every value that is not a default; `overridden` has the keys whose value in code was
    replaced by an explicit file, the environment or an option.
    """

    app: AppConfig
    project: ProjectConfig
    worker: WorkerSettings
    tui: TuiConfig
    log: LogConfig
    file: Path | None
    origins: Mapping[KeyPath, Origin]
    overridden: tuple[str, ...]

    @property
    def locator(self) -> str | None:
        return self.project.locator

    @property
    def modules(self) -> list[str]:
        return self.project.modules

    def origin_of(self, model_path: KeyPath) -> Origin:
        return self.origins.get(model_path, DEFAULT_ORIGIN)

    def worker_config(self) -> WorkerConfig:
        """Return the configuration of a worker; raises HRS-103 for a queue that is not configured."""
        return WorkerConfig.of(self.app, self.worker, self.project)


def load_settings(
    config_path: str | os.PathLike[str] | None = None,
    *,
    app_config: AppConfig | None = None,
    options: Mapping[str, object] | None = None,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    code: Path | None = None,
) -> LoadedSettings:
    """Load the settings; raises all errors together.

    Precedence: defaults < discovered file < code < explicit file < environment < options. A file is explicit if
    `config_path` or HORSIES_CONFIG names it, and discovered if it was found in the working folder or a parent, or else
    in the folder of `code`, the file that constructs the app, or a parent.
    """
    explicit, folder = config_path or environ.get("HORSIES_CONFIG"), cwd or working_folder()
    path = folder / Path(explicit).expanduser() if explicit else discover_file(folder, code)
    file = None if path is None else read_config_file(path)
    given = GivenSettings()
    if app_config is not None:
        given.add_code(app_config)
    if file is not None:
        given.add_file(file, precedence=Precedence.EXPLICIT_FILE if explicit else Precedence.DISCOVERED_FILE)
    given.add_environment(environ)  # after files and code, which tell how the names of queues are spelled
    given.add_options(options or {})
    if app_config is not None and app_config.custom_queues:  # code has the complete list
        given.drop_discovered_queues(kept={queue.name for queue in app_config.custom_queues})
    settings = _validate(given, app_config)
    overridden = _overridden_keys(app_config, settings) if app_config else ()
    if project := find_project(path, code, folder):
        settings = settings.model_copy(update={"app": in_project(settings.app, project)})
    return LoadedSettings(
        **dict(settings),
        file=path,
        origins={path: setting.origin for path, setting in given.values.items()},
        overridden=overridden,
    )


def _validate(given: GivenSettings, code: AppConfig | None) -> AllSettings:
    """Return the validated settings; raises the errors of all keys and values together."""
    table = _nested_tables(given)
    if code is not None:
        table["app"].update(_groups_set_only_in_code(given, code))
    validated = AllSettings.try_validate(table)
    faults = validated.err() or ()
    raise_together("configuration", [*given.errors, *(_value_error(fault, given, table) for fault in faults)])
    return validated.unwrap()


def _nested_tables(given: GivenSettings) -> dict[str, Any]:
    tables: dict[str, Any] = {"app": {}}
    for path, setting in given.values.items():
        inner = tables
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = setting.value
    # Sources address queues by name, so that each can override single fields; the model has a list of them.
    if queues := tables["app"].pop("custom_queues", None):
        tables["app"]["custom_queues"] = [{"name": name, **fields} for name, fields in queues.items()]
    return tables


def _groups_set_only_in_code(given: GivenSettings, code: AppConfig) -> dict[str, Settings]:
    """Return the setting groups that only code sets; validating them again would reject `unchecked` ones."""
    elsewhere = {path[:2] for path, setting in given.values.items() if setting.origin.precedence != Precedence.CODE}
    groups = {name: getattr(code, name) for name in code.model_fields_set if ("app", name) not in elsewhere}
    return {name: group for name, group in groups.items() if isinstance(group, Settings)}


def _value_error(fault: Fault, given: GivenSettings, table: Mapping[str, Any]) -> ConfigurationError:
    """Report a fault with its TOML name and the origin of highest precedence among the involved settings."""
    path, *involved = (_with_queue_name(path, table) for path in (fault.path, *fault.involved))
    origins = [origin for setting in (path, *involved) for origin in _related_origins(given, setting)]
    origin = max(origins, key=lambda origin: origin.precedence, default=DEFAULT_ORIGIN)
    return fault.as_error(name=toml_name(path), source=origin.source, location=origin.location)


def _related_origins(given: GivenSettings, path: SettingPath) -> Iterator[Origin]:
    """Yield the origins of the setting, of values inside it and of a value that contains it."""
    for given_path, setting in given.values.items():
        if given_path == path[: len(given_path)] or given_path[: len(path)] == path:
            yield setting.origin.of_item(path[len(given_path) :])


def _overridden_keys(code: AppConfig, settings: AllSettings) -> tuple[str, ...]:
    """Return the keys whose value in code was overridden with a different one."""
    given = ((path, value) for path, value in explicit_values(code) if path != SCHEDULES)  # a file adds to them
    return tuple(sorted(toml_name(path) for path, value in given if value_at(settings, path) != value))


def value_at(settings: Any, path: KeyPath) -> Any:
    """Return the value of a setting; queues are found by name, and a missing schedule has the defaults."""
    for part in path:
        if isinstance(settings, list):
            settings = next(item for item in cast("list[Any]", settings) if item.name == part)
        else:
            settings = getattr(ScheduleConfig() if settings is None else settings, part)
    return settings


_TOML_NAMES: Mapping[SettingPath, str] = {key.model_path: key.path for key in KEYS.values()}


def toml_name(path: SettingPath) -> str:
    """Return the name of a setting in horsies.toml, or in code if the file has no such key."""
    if path[:2] == ("app", "custom_queues"):
        return format_path(("queues", *map(_quote_key, path[2:])))
    for length in range(len(path), 1, -1):  # the longest known key; the rest is a path inside its value
        if name := _TOML_NAMES.get(path[:length]):
            return format_path((name, *path[length:]))
    return format_path(path[1:])


def _with_queue_name(path: SettingPath, table: Mapping[str, Any]) -> SettingPath:
    """Replace the index of a queue in the path of a fault with the name of the queue."""
    if path[:2] == ("app", "custom_queues") and len(path) > 2:
        # In the file the name of a queue is the name of its table, not a key.
        return (
            *path[:2],
            table["app"]["custom_queues"][path[2]]["name"],
            *(part for part in path[3:] if part != "name"),
        )
    return path


def _quote_key(part: str | int) -> str | int:
    """Quote a key part that is not a bare TOML key."""
    is_bare = isinstance(part, int) or re.fullmatch(r"[A-Za-z0-9_-]+", part)
    return part if is_bare else json.dumps(part, ensure_ascii=False)
