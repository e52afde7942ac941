"""What each origin gives, as a flat list of values, and the names in it that nobody knows."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from horsies.config.keys import SECTIONS, Kind, look_up
from horsies.errors import ConfigurationError, ErrorCode, SourceLocation
from horsies.model.settings import AppConfig, CustomQueueConfig, Fault, QueueMode, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from horsies.config.keys import Key, Target
    from horsies.model.settings.base import Path as Place


# Values as people write them outside of code.

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def plain(key: Key, value: Any) -> Any:
    """The value itself, or None where the key allows it and it was written as "none" or -1."""
    says_none = value.strip().lower() == "none" if isinstance(value, str) else type(value) is int and value == -1
    return None if key.is_optional and says_none else value


def from_text(key: Key, text: str) -> Any:
    """The value an environment variable stands for; text that cannot be read stays text, for the model to refuse."""
    match key.kind:
        case Kind.TEXT:
            return text
        case Kind.BOOLEAN:
            return _BOOLEANS.get(text.strip().lower(), text)
        case Kind.JSON:
            try:
                return json.loads(text)
            except ValueError:
                return text


# Where a value came from, and which of two origins wins.


class Rank(IntEnum):
    """Origins in their order: a later one replaces an earlier one."""

    DEFAULT = 0
    FALLBACK = 1
    FOUND_FILE = 2
    CODE = 3
    NAMED_FILE = 4
    ENVIRONMENT = 5
    OPTION = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """An origin as `config show` prints it; `source` is empty for values that need no introduction."""

    rank: Rank
    source: str = ""
    location: SourceLocation | None = None
    inside: Mapping[Place, SourceLocation] = field(default_factory=dict["Place", "SourceLocation"], repr=False)

    def __str__(self) -> str:
        if self.location is not None:
            return str(self.location)
        return self.source or self.rank.name.lower()

    def within(self, path: Place) -> Origin:
        """The origin of what stands at `path` inside a value that is a list or a table."""
        for length in range(len(path), 0, -1):
            if location := self.inside.get(path[:length]):
                return replace(self, location=location)
        return self


DEFAULT = Origin(rank=Rank.DEFAULT)
CODE = Origin(rank=Rank.CODE)
OPTION = Origin(rank=Rank.OPTION, source="command line")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A value for the setting at `target`; left out of the repr, for it may hold a password."""

    target: Target
    value: Any = field(repr=False)
    origin: Origin


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


# The lines on which the tables and keys of a TOML file stand, by a glance at their starts; tomllib does not tell.

_PART = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([\w-]+))\s*(?:\.|$)""")


def lines_of(text: str) -> Iterator[tuple[Place, int]]:
    """Each table and key with its line; the items of a list of tables are counted from 0."""
    table: Place = ()
    lists: Counter[Place] = Counter()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*(\[\[?)([^\[\]]+)\]", line):
            name = _parts(header[2])
            if header[1] == "[[":
                lists[name] += 1
                if lists[name] == 1:
                    yield name, number
            table = _in_latest_item(name, lists)
            yield table, number
        elif key := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            yield table + _parts(key[1]), number


def _in_latest_item(name: Place, lists: Counter[Place]) -> Place:
    """`schedule.entries.pattern` as `schedule.entries[1].pattern` once a second entry was begun."""
    for length in range(len(name), 0, -1):
        if count := lists[name[:length]]:
            return (*name[:length], count - 1, *name[length:])
    return name


def _parts(name: str) -> Target:
    return tuple("".join(part) for part in _PART.findall(name))


# Finding, reading and parsing horsies.toml, with the place of everything in it.

FILE_NAME = "horsies.toml"

_SYNTAX_HINT = "a line is name = value, with text in quotes, or a [section]; each name stands once in its section"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """A file that was read: its tables, and the line on which each key stands."""

    path: Path
    table: Mapping[str, Any]
    lines: Mapping[Place, int]

    def location_of(self, path: Target) -> SourceLocation | None:
        """The line of the key, or of the nearest table around it; None when neither was recognised."""
        for length in range(len(path), 0, -1):
            if line := self.lines.get(path[:length]):
                return SourceLocation(file=str(self.path), line=line)
        return None

    def locations_inside(self, path: Target) -> dict[Place, SourceLocation]:
        """The lines of what stands inside the value at `path`, by the paths they have there."""
        return {
            place[len(path) :]: SourceLocation(file=str(self.path), line=line)
            for place, line in self.lines.items()
            if place[: len(path)] == path and len(place) > len(path)
        }


def working_folder() -> Path:
    """Where this process stands; `.` where that was deleted, and no file is found there or above."""
    try:
        return Path.cwd()
    except OSError:
        return Path()


def find(folder: Path) -> Path | None:
    """The nearest horsies.toml from `folder` upwards; folders that may not be looked into have none."""
    candidates = (place / FILE_NAME for place in (folder, *folder.parents))
    return next((path for path in candidates if _is_file(path)), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def read(path: Path) -> ConfigFile:
    """Read a file that must be there; whatever is wrong with it raises `ConfigurationError`."""
    text = _text_of(path)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as wrong:
        raise _syntax_error(path, str(wrong)) from None
    except RecursionError:
        hint = "no setting needs more than a few levels of lists or tables"
        raise unusable(f"{path}: not readable as TOML: nested too deeply", hint=hint) from None
    return ConfigFile(path=path, table=table, lines=dict(lines_of(text)))


def _text_of(path: Path) -> str:
    try:
        # Editors on Windows put a byte order mark first.
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise unusable(f"{path}: no such file", hint='"horsies init" writes one') from None
    except IsADirectoryError:
        raise unusable(f"{path}: is a folder", hint=f"name the file in it: {path / FILE_NAME}") from None
    except UnicodeDecodeError as wrong:
        raise unusable(f"{path}: is not UTF-8 (byte {wrong.start})", hint="save it as UTF-8") from None
    except OSError as wrong:
        hint = "let this user read it, or name another file with --config"
        raise unusable(f"{path}: cannot be read: {wrong.strerror}", hint=hint) from None


def _syntax_error(path: Path, message: str) -> ConfigurationError:
    place = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    location = SourceLocation(file=str(path), line=int(place[1]), column=int(place[2])) if place else None
    text = message[: place.start()] if place else message
    at = f"{path}:{place[1]}:{place[2]}" if place else str(path)
    return unusable(f"{at}: not valid TOML: {text}", hint=_SYNTAX_HINT, location=location)


def unusable(message: str, *, hint: str, location: SourceLocation | None = None) -> ConfigurationError:
    """HRS-206 for a file that cannot be used as it is."""
    return ConfigurationError(message, code=ErrorCode.CLI_INVALID_ARGS, hint=hint, location=location)
