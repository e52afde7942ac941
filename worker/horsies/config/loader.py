"""Merges the settings of all sources by precedence and validates them; every value keeps its origin."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from horsies.config.keys import KEYS, AllSettings, KeyPath
from horsies.config.sources import (
    DEFAULT_ORIGIN,
    Layer,
    Origin,
    Precedence,
    SettingValue,
    find_config_file,
    layer_from_code,
    layer_from_database_url,
    layer_from_environment,
    layer_from_file,
    layer_from_options,
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
from horsies.model.settings.base import SettingPath, format_path


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
) -> LoadedSettings:
    """Load the settings; raises all errors together.

    Precedence: defaults < discovered file < code < explicit file < environment < options. A file is explicit if
    `config_path` or HORSIES_CONFIG names it, and discovered if it was found in the folder or a parent.
    """
    explicit, folder = config_path or environ.get("HORSIES_CONFIG"), cwd or working_folder()
    path = folder / Path(explicit).expanduser() if explicit else find_config_file(folder)
    file = None if path is None else read_config_file(path)
    file_precedence = Precedence.EXPLICIT_FILE if explicit else Precedence.DISCOVERED_FILE
    given = [
        layer_from_file(file, precedence=file_precedence) if file else Layer(),
        layer_from_code(app_config) if app_config else Layer(),
    ]
    # Variables match queue names regardless of case; files and code tell how a name is spelled.
    queue_names = {name for layer in given for name in layer.queue_names}
    environment = layer_from_environment(environ, queue_names=queue_names)
    layers = [layer_from_database_url(environ), *given, environment, layer_from_options(options or {})]
    merged = MergedSettings.merge(layers, app_config=app_config)
    settings = merged.validate(key_errors=[error for layer in layers for error in layer.errors])
    return LoadedSettings(
        **dict(settings),
        file=path,
        origins={path: given.origin for path, given in merged.values.items()},
        overridden=overridden_keys(app_config, settings) if app_config else (),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedSettings:
    """The winning value of every setting, and the configuration given in code."""

    values: Mapping[KeyPath, SettingValue]
    app_config: AppConfig | None

    @classmethod
    def merge(cls, layers: Iterable[Layer], *, app_config: AppConfig | None) -> MergedSettings:
        """Merge the layers by precedence."""
        given = [item for layer in layers for item in layer.values.items()]
        values = dict(sorted(given, key=lambda item: item[1].origin.precedence))
        if app_config and app_config.custom_queues:
            names = {queue.name for queue in app_config.custom_queues}
            values = {path: value for path, value in values.items() if not _is_ignored_queue(path, value, names)}
        return cls(values=values, app_config=app_config)

    def validate(self, *, key_errors: Iterable[ConfigurationError]) -> AllSettings:
        """Return the validated settings; raises `key_errors` and the errors of all values together."""
        table = self._table()
        validated = AllSettings.try_validate(table)
        errors = [self._error(fault, table) for fault in validated.err() or ()]
        raise_together("configuration", [*key_errors, *errors])
        return validated.unwrap()

    def _table(self) -> dict[str, Any]:
        """Return the values as nested dicts, ready for validation."""
        table: dict[str, Any] = {}
        for path, given in self.values.items():
            inner = table
            for part in path[:-1]:
                inner = inner.setdefault(part, {})
            inner[path[-1]] = given.value
        app = table.setdefault("app", {})
        app.update(self._groups_set_only_in_code())
        # Layers address queues by name, so that each can override single fields; the model has a list of them.
        if queues := app.pop("custom_queues", None):
            app["custom_queues"] = [{"name": name, **fields} for name, fields in queues.items()]
        return table

    def _groups_set_only_in_code(self) -> dict[str, Settings]:
        """Return the setting groups that only code sets; validating them again would reject `unchecked` ones."""
        code = self.app_config
        groups = {name: getattr(code, name) for name in code.model_fields_set} if code else {}
        elsewhere = {path[:2] for path, given in self.values.items() if given.origin.precedence != Precedence.CODE}
        return {
            name: group
            for name, group in groups.items()
            if isinstance(group, Settings) and ("app", name) not in elsewhere
        }

    def _error(self, fault: Fault, table: Mapping[str, Any]) -> ConfigurationError:
        """Report a fault with its TOML name and the origin of highest precedence among the involved settings."""
        path, *involved = (_with_queue_name(path, table) for path in (fault.path, *fault.involved))
        origin = max(map(self._origin, (path, *involved)), key=lambda origin: origin.precedence)
        return fault.as_error(name=toml_name(path), source=origin.source, location=origin.location)

    def _origin(self, path: SettingPath) -> Origin:
        """Return the origin of the setting, of a value inside it or of a value that contains it; the highest wins."""
        related = [
            given.origin.of_item(path[len(given_path) :])
            for given_path, given in self.values.items()
            if given_path == path[: len(given_path)] or given_path[: len(path)] == path
        ]
        return max(related, key=lambda origin: origin.precedence, default=DEFAULT_ORIGIN)


def _is_ignored_queue(path: KeyPath, given: SettingValue, names: Collection[str]) -> bool:
    """Whether this is a queue in a discovered file that code, whose list of queues is complete, does not define."""
    is_queue = path[:2] == ("app", "custom_queues")
    return is_queue and given.origin.precedence < Precedence.CODE and path[2] not in names


def overridden_keys(code: AppConfig, settings: AllSettings) -> tuple[str, ...]:
    """Return the keys whose value in code was overridden with a different one."""
    given = layer_from_code(code).values.items()
    return tuple(sorted(toml_name(path) for path, setting in given if value_at(settings, path) != setting.value))


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
