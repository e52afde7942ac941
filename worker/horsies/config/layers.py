"""What each origin gives, as a flat list of values, and the names in it that nobody knows."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from horsies.config.lookup import SECTIONS, look_up
from horsies.config.origin import CODE, OPTION, Given, Origin, Rank
from horsies.config.values import from_text, plain
from horsies.model.settings import AppConfig, CustomQueueConfig, Fault, QueueMode, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from horsies.config.files import ConfigFile
    from horsies.config.keys import Key, Target
    from horsies.errors import ConfigurationError

_QUEUES = ("app", "custom_queues")
_MODE = ("app", "queue_mode")


@dataclass(frozen=True, slots=True)
class Layer:
    """The values of one origin, and what is wrong with the names in it."""

    given: list[Given] = field(default_factory=list[Given])
    errors: list[ConfigurationError] = field(default_factory=list["ConfigurationError"])

    def take(self, path: Target, value: Any, origin: Origin) -> None:
        """Keep the value under its key, or the error that there is no such key."""
        key = look_up(path)
        if isinstance(key, Fault):
            error = key.as_error(source=origin.source, location=origin.location)
            if error.message not in {known.message for known in self.errors}:
                self.errors.append(error)
            return
        if isinstance(value, str) and origin.rank >= Rank.ENVIRONMENT:
            value = from_text(key, value)
        self.given.append(Given(target=_target(key, path), value=plain(key, value), origin=origin))

    @property
    def queue_names(self) -> set[str]:
        return {given.target[2] for given in self.given if given.target[:2] == _QUEUES}

    def with_implied_mode(self) -> Layer:
        """Queues imply the custom mode, with the rank of whoever named them."""
        queues = [given for given in self.given if given.target[:2] == _QUEUES]
        if queues and all(given.target != _MODE for given in self.given):
            self.given.append(Given(target=_MODE, value=QueueMode.CUSTOM, origin=queues[0].origin))
        return self


def from_file(file: ConfigFile, *, rank: Rank) -> Layer:
    layer = Layer()
    for path, value in _leaves(file.table):
        location, inside = file.location_of(path), file.locations_inside(path)
        layer.take(path, value, Origin(rank=rank, source=str(file.path), location=location, inside=inside))
    return layer.with_implied_mode()


def from_environment(environ: Mapping[str, str], *, queue_names: Iterable[str]) -> Layer:
    """Every `HORSIES_SECTION__KEY`; names with a single underscore only are variables of another kind."""
    layer = Layer()
    known = {_as_variable(name): name for name in queue_names}
    for variable in sorted(name for name in environ if name.startswith("HORSIES_") and "__" in name):
        path = tuple(variable.removeprefix("HORSIES_").lower().split("__"))
        if path[0] == "queues" and len(path) > 1:
            path = (path[0], known.get(path[1], path[1]), *path[2:])
        layer.take(path, environ[variable], Origin(rank=Rank.ENVIRONMENT, source=variable))
    return layer.with_implied_mode()


def from_fallback(environ: Mapping[str, str]) -> Layer:
    layer = Layer()
    if url := environ.get("DATABASE_URL"):
        layer.take(("broker", "database_url"), url, Origin(rank=Rank.FALLBACK, source="DATABASE_URL"))
    return layer


def from_options(options: Mapping[str, object]) -> Layer:
    """Options by dotted key (`worker.processes`); None means that the option was not used."""
    layer = Layer()
    for name, value in options.items():
        if value is not None:
            layer.take(tuple(name.split(".")), value, OPTION)
    return layer.with_implied_mode()


def from_code(config: AppConfig) -> Layer:
    return Layer([Given(target=target, value=value, origin=CODE) for target, value in _set_in(config, ("app",))])


def _set_in(settings: Settings, prefix: Target) -> Iterator[tuple[Target, Any]]:
    for name in settings.model_fields_set:
        value = getattr(settings, name)
        if isinstance(value, Settings):
            yield from _set_in(value, (*prefix, name))
        elif (*prefix, name) == _QUEUES:
            for queue in cast("list[CustomQueueConfig] | None", value) or ():
                yield from _set_in(queue, (*_QUEUES, queue.name))
        else:
            yield (*prefix, name), value


def _leaves(table: Mapping[str, Any]) -> Iterator[tuple[Target, Any]]:
    """Keys with their whole values; queues are one table deeper than the other sections."""
    for section, content in table.items():
        if not isinstance(content, dict) or (not content and section not in SECTIONS):
            yield (section,), content
            continue
        for name, value in cast("dict[str, Any]", content).items():
            if section == "queues" and isinstance(value, dict):
                # An empty table is a queue with every default, which its name alone says.
                inner = cast("dict[str, Any]", value) or {"priority": 1}
                yield from (((section, name, key), item) for key, item in inner.items())
            else:
                yield (section, name), value


def _target(key: Key, path: Target) -> Target:
    return tuple(path[1] if part == "NAME" else part for part in key.target)


def _as_variable(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", name.lower())
