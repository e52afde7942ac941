"""Settings from all their origins, each value with the origin that won."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from horsies.config.keys import KEYS, ROOTS, SCHEDULE_ENTRIES_KEY, KeyPath
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
from horsies.model.settings.base import SettingPath as FaultPath
from horsies.model.settings.base import format_path

if TYPE_CHECKING:
    from horsies.config.sources import ConfigFile


# One value for each setting out of several layers, and the models made of them.

_NAMES: Mapping[FaultPath, str] = {key.model_path: key.path for key in (*KEYS.values(), SCHEDULE_ENTRIES_KEY)}


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedSettings:
    """The value that won for each setting, and the code it may have won against."""

    values: Mapping[KeyPath, SettingValue]
    app_config: AppConfig | None
    code_values: Mapping[KeyPath, SettingValue]

    @classmethod
    def merge(cls, layers: Sequence[Layer], *, app_config: AppConfig | None) -> MergedSettings:
        """Later layers win."""
        given = {item.model_path: item for layer in layers for item in layer.values}
        in_code = {
            item.model_path: item
            for layer in layers
            for item in layer.values
            if item.origin.precedence is Precedence.CODE
        }
        if app_config and app_config.custom_queues:
            given = {target: item for target, item in given.items() if not _is_ignored_queue(item, app_config)}
        return cls(values=given, app_config=app_config, code_values=in_code)

    def build_models(self) -> tuple[dict[str, Settings], list[ConfigurationError]]:
        """The models by the names of their roots, or what is wrong with them."""
        made: dict[str, Settings] = {}
        errors: list[ConfigurationError] = []
        for root, model in ROOTS.items():
            table = self._table(root)
            match model.try_validate(table):
                case Settings() as settings:
                    made[root] = settings
                case faults:
                    errors += [self._error(fault.with_parent((root,)), table) for fault in faults]
        return made, errors

    def overridden_keys(self, app: Settings) -> tuple[str, ...]:
        """The keys whose value in code gave way to another value."""
        beaten = (target for target, item in self.code_values.items() if value_at(app, target[1:]) != item.value)
        return tuple(sorted(toml_name(target) for target in beaten))

    def _table(self, root: str) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for target, item in self.values.items():
            if target[0] == root:
                _put(table, target[1:], item.value)
        if root == "app":
            table.update(self._groups_set_only_in_code())
        if queues := table.pop("custom_queues", None):
            table["custom_queues"] = [{"name": name, **fields} for name, fields in queues.items()]
        return table

    def _groups_set_only_in_code(self) -> dict[str, Settings]:
        """Groups to be kept as they are, which spares those that were made unchecked on purpose."""
        code = self.app_config
        names = code.model_fields_set if code else ()
        groups = {name: getattr(code, name) for name in names if isinstance(getattr(code, name), Settings)}
        ranks = {
            name: {g.origin.precedence for t, g in self.values.items() if t[:2] == ("app", name)} for name in groups
        }
        return {name: group for name, group in groups.items() if ranks[name] <= {Precedence.CODE}}

    def _error(self, fault: Fault, table: Mapping[str, Any]) -> ConfigurationError:
        """The fault under the names of the file, blaming the strongest origin among the settings involved."""
        involved = [_target(path, table) for path in (fault.path, *fault.involved)]
        origin = max((self._origin(target) for target in involved), key=lambda origin: origin.precedence)
        name = toml_name(_target(fault.path, table))
        return fault.as_error(name=name, source=origin.source, location=origin.location)

    def _origin(self, target: FaultPath) -> Origin:
        """The origin of the setting, or of whatever was given inside or around it."""
        near = [
            item.origin.for_path(target[len(place) :])
            for place, item in self.values.items()
            if place == target[: len(place)] or place[: len(target)] == target
        ]
        return max(near, key=lambda origin: origin.precedence, default=DEFAULT_ORIGIN)


def value_at(settings: Any, path: KeyPath) -> Any:
    """The value of a setting; queues go by their names, and an absent schedule has its defaults."""
    for part in path:
        if isinstance(settings, list):
            settings = next(item for item in cast("list[Any]", settings) if item.name == part)
        else:
            settings = getattr(ScheduleConfig() if settings is None else settings, part)
    return settings


def toml_name(target: FaultPath) -> str:
    """The name a setting has in horsies.toml, or in code when it has none there."""
    if target[:2] == ("app", "custom_queues"):
        return format_path(("queues", *map(_quoted, target[2:])))
    for length in range(len(target), 1, -1):
        if name := _NAMES.get(target[:length]):
            return format_path((name, *target[length:]))
    return format_path(target[1:])


def _target(path: FaultPath, table: Mapping[str, Any]) -> FaultPath:
    """The path of a fault as a target; queues are counted in a list there and go by their names here."""
    if path[:2] == ("app", "custom_queues") and len(path) > 2:
        # The name is no setting of the file's but what its table is called.
        return (*path[:2], table["custom_queues"][path[2]]["name"], *(part for part in path[3:] if part != "name"))
    return path


def _quoted(part: str | int) -> str | int:
    """The part as TOML wants it; one that is not plain stands in quotes."""
    is_plain = isinstance(part, int) or re.fullmatch(r"[A-Za-z0-9_-]+", part)
    return part if is_plain else json.dumps(part, ensure_ascii=False)


def _put(table: dict[str, Any], path: KeyPath, value: Any) -> None:
    for part in path[:-1]:
        table = table.setdefault(part, {})
    table[path[-1]] = value


def _is_ignored_queue(item: SettingValue, code: AppConfig) -> bool:
    """A queue that a merely found file adds to those given in code, whose list it must not replace."""
    names = {queue.name for queue in code.custom_queues or ()}
    is_queue = item.model_path[:2] == ("app", "custom_queues")
    return is_queue and item.origin.precedence < Precedence.CODE and item.model_path[2] not in names


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    """The settings of every section, the file they were read from, and where each value came from.

    `origins` has an entry for every value that is not a default; `replaced` names the keys whose value in code gave
    way to a named file, the environment or an option.
    """

    app: AppConfig
    project: ProjectConfig
    worker: WorkerSettings
    tui: TuiConfig
    log: LogConfig
    file: Path | None
    origins: Mapping[KeyPath, Origin]
    replaced: tuple[str, ...]

    @property
    def locator(self) -> str | None:
        return self.project.locator

    @property
    def modules(self) -> list[str]:
        return self.project.modules

    def origin_of(self, target: KeyPath) -> Origin:
        return self.origins.get(target, DEFAULT_ORIGIN)

    def worker_config(self) -> WorkerConfig:
        """What a worker with these settings runs with; a queue that is not configured is HRS-103."""
        return WorkerConfig.of(self.app, self.worker, self.project)


def load_settings(
    config_path: str | os.PathLike[str] | None = None,
    *,
    app_config: AppConfig | None = None,
    options: Mapping[str, object] | None = None,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
) -> LoadedSettings:
    """Resolve default < found file < code < named file < environment < option, or raise every fault together."""
    file, rank = _file(config_path or environ.get("HORSIES_CONFIG"), cwd or working_folder())
    layers = _layers(file, rank=rank, code=app_config, options=options or {}, environ=environ)
    assembly = MergedSettings.merge(layers, app_config=app_config)
    made, errors = assembly.build_models()
    raise_together("configuration", [*(error for layer in layers for error in layer.errors), *errors])
    return LoadedSettings(
        **cast("dict[str, Any]", made),
        file=file.path if file else None,
        origins={target: given.origin for target, given in assembly.values.items()},
        replaced=assembly.overridden_keys(made["app"]),
    )


def _file(named: str | os.PathLike[str] | None, folder: Path) -> tuple[ConfigFile | None, Precedence]:
    if named:
        return read_config_file(folder / Path(named).expanduser()), Precedence.NAMED_FILE
    found = find_config_file(folder)
    return (read_config_file(found) if found else None), Precedence.DISCOVERED_FILE


def _layers(
    file: ConfigFile | None,
    *,
    rank: Precedence,
    code: AppConfig | None,
    options: Mapping[str, object],
    environ: Mapping[str, str],
) -> list[Layer]:
    """The layers in the order of their ranks."""
    in_file = layer_from_file(file, rank=rank) if file else Layer()
    in_code = layer_from_code(code) if code else Layer()
    below = [in_file, in_code] if rank is Precedence.DISCOVERED_FILE else [in_code, in_file]
    in_environment = layer_from_environment(environ, queue_names=_queue_names(below))
    return [layer_from_database_url(environ), *below, in_environment, layer_from_options(options)]


def _queue_names(layers: Iterable[Layer]) -> set[str]:
    return {name for layer in layers for name in layer.queue_names}
