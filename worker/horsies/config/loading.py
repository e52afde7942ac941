"""Settings from all their origins, each value with the origin that won."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from horsies.config.assembly import Assembly
from horsies.config.files import find, read, working_folder
from horsies.config.layers import Layer, from_code, from_environment, from_fallback, from_file, from_options
from horsies.config.origin import DEFAULT, Origin, Rank
from horsies.errors import raise_together
from horsies.model.settings import AppConfig, LogConfig, ProjectConfig, TuiConfig, WorkerConfig, WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from horsies.config.files import ConfigFile
    from horsies.config.keys import Target


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
