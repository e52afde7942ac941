"""Settings from all their origins, each value with the origin that won."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from horsies.config.keys import ENTRIES, KEYS, ROOTS, Target
from horsies.config.sources import (
    DEFAULT,
    Given,
    Layer,
    Origin,
    Rank,
    find,
    from_code,
    from_environment,
    from_fallback,
    from_file,
    from_options,
    read,
    working_folder,
)
from horsies.errors import raise_together
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
from horsies.model.settings.base import dotted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from horsies.config.sources import ConfigFile
    from horsies.errors import ConfigurationError
    from horsies.model.settings.base import Path as FaultPath


# One value for each setting out of several layers, and the models made of them.

_NAMES: Mapping[FaultPath, str] = {key.target: key.path for key in (*KEYS.values(), ENTRIES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The value that won for each setting, and the code it may have won against."""

    given: Mapping[Target, Given]
    code: AppConfig | None
    in_code: Mapping[Target, Given]

    @classmethod
    def of(cls, layers: Sequence[Layer], *, code: AppConfig | None) -> Assembly:
        """Later layers win."""
        given = {item.target: item for layer in layers for item in layer.given}
        in_code = {item.target: item for layer in layers for item in layer.given if item.origin.rank is Rank.CODE}
        if code and code.custom_queues:
            given = {target: item for target, item in given.items() if not _is_stray_queue(item, code)}
        return cls(given=given, code=code, in_code=in_code)

    def build(self) -> tuple[dict[str, Settings], list[ConfigurationError]]:
        """The models by the names of their roots, or what is wrong with them."""
        made: dict[str, Settings] = {}
        errors: list[ConfigurationError] = []
        for root, model in ROOTS.items():
            table = self._table(root)
            match model.examine(table):
                case Settings() as settings:
                    made[root] = settings
                case faults:
                    errors += [self._error(fault.below((root,)), table) for fault in faults]
        return made, errors

    def replaced(self, app: Settings) -> tuple[str, ...]:
        """The keys whose value in code gave way to another value."""
        beaten = (target for target, item in self.in_code.items() if value_at(app, target[1:]) != item.value)
        return tuple(sorted(name_of(target) for target in beaten))

    def _table(self, root: str) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for target, item in self.given.items():
            if target[0] == root:
                _put(table, target[1:], item.value)
        if root == "app":
            table.update(self._groups_only_code_touched())
        if queues := table.pop("custom_queues", None):
            table["custom_queues"] = [{"name": name, **fields} for name, fields in queues.items()]
        return table

    def _groups_only_code_touched(self) -> dict[str, Settings]:
        """Groups to be kept as they are, which spares those that were made unchecked on purpose."""
        code = self.code
        names = code.model_fields_set if code else ()
        groups = {name: getattr(code, name) for name in names if isinstance(getattr(code, name), Settings)}
        ranks = {name: {g.origin.rank for t, g in self.given.items() if t[:2] == ("app", name)} for name in groups}
        return {name: group for name, group in groups.items() if ranks[name] <= {Rank.CODE}}

    def _error(self, fault: Fault, table: Mapping[str, Any]) -> ConfigurationError:
        """The fault under the names of the file, blaming the strongest origin among the settings involved."""
        involved = [_target(path, table) for path in (fault.path, *fault.involved)]
        origin = max((self._origin(target) for target in involved), key=lambda origin: origin.rank)
        name = name_of(_target(fault.path, table))
        return fault.as_error(name=name, source=origin.source, location=origin.location)

    def _origin(self, target: FaultPath) -> Origin:
        """The origin of the setting, or of whatever was given inside or around it."""
        near = [
            item.origin.within(target[len(place) :])
            for place, item in self.given.items()
            if place == target[: len(place)] or place[: len(target)] == target
        ]
        return max(near, key=lambda origin: origin.rank, default=DEFAULT)


def value_at(settings: Any, path: Target) -> Any:
    """The value of a setting; queues go by their names, and an absent schedule has its defaults."""
    for part in path:
        if isinstance(settings, list):
            settings = next(item for item in cast("list[Any]", settings) if item.name == part)
        else:
            settings = getattr(ScheduleConfig() if settings is None else settings, part)
    return settings


def name_of(target: FaultPath) -> str:
    """The name a setting has in horsies.toml, or in code when it has none there."""
    if target[:2] == ("app", "custom_queues"):
        return dotted(("queues", *map(_quoted, target[2:])))
    for length in range(len(target), 1, -1):
        if name := _NAMES.get(target[:length]):
            return dotted((name, *target[length:]))
    return dotted(target[1:])


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


def _put(table: dict[str, Any], path: Target, value: Any) -> None:
    for part in path[:-1]:
        table = table.setdefault(part, {})
    table[path[-1]] = value


def _is_stray_queue(item: Given, code: AppConfig) -> bool:
    """A queue that a merely found file adds to those given in code, whose list it must not replace."""
    names = {queue.name for queue in code.custom_queues or ()}
    is_queue = item.target[:2] == ("app", "custom_queues")
    return is_queue and item.origin.rank < Rank.CODE and item.target[2] not in names


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
    origins: Mapping[Target, Origin]
    replaced: tuple[str, ...]

    @property
    def locator(self) -> str | None:
        return self.project.locator

    @property
    def modules(self) -> list[str]:
        return self.project.modules

    def origin_of(self, target: Target) -> Origin:
        return self.origins.get(target, DEFAULT)

    def worker_config(self) -> WorkerConfig:
        """What a worker with these settings runs with; a queue that is not configured is HRS-103."""
        return WorkerConfig.of(self.app, self.worker, self.project)


def load(
    config_path: str | os.PathLike[str] | None = None,
    *,
    code: AppConfig | None = None,
    options: Mapping[str, object] | None = None,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
) -> LoadedSettings:
    """Resolve default < found file < code < named file < environment < option, or raise every fault together."""
    file, rank = _file(config_path or environ.get("HORSIES_CONFIG"), cwd or working_folder())
    layers = _layers(file, rank=rank, code=code, options=options or {}, environ=environ)
    assembly = Assembly.of(layers, code=code)
    made, errors = assembly.build()
    raise_together("configuration", [*(error for layer in layers for error in layer.errors), *errors])
    return LoadedSettings(
        **cast("dict[str, Any]", made),
        file=file.path if file else None,
        origins={target: given.origin for target, given in assembly.given.items()},
        replaced=assembly.replaced(made["app"]),
    )


def _file(named: str | os.PathLike[str] | None, folder: Path) -> tuple[ConfigFile | None, Rank]:
    if named:
        return read(folder / Path(named).expanduser()), Rank.NAMED_FILE
    found = find(folder)
    return (read(found) if found else None), Rank.FOUND_FILE


def _layers(
    file: ConfigFile | None,
    *,
    rank: Rank,
    code: AppConfig | None,
    options: Mapping[str, object],
    environ: Mapping[str, str],
) -> list[Layer]:
    """The layers in the order of their ranks."""
    in_file = from_file(file, rank=rank) if file else Layer()
    in_code = from_code(code) if code else Layer()
    below = [in_file, in_code] if rank is Rank.FOUND_FILE else [in_code, in_file]
    in_environment = from_environment(environ, queue_names=_queue_names(below))
    return [from_fallback(environ), *below, in_environment, from_options(options)]


def _queue_names(layers: Iterable[Layer]) -> set[str]:
    return {name for layer in layers for name in layer.queue_names}
