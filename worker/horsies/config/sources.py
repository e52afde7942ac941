"""What each origin gives, as a flat list of values, and the names in it that nobody knows."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from horsies.config.keys import SECTIONS, EnvFormat, look_up
from horsies.errors import ConfigurationError, ErrorCode, SourceLocation
from horsies.model.settings import AppConfig, CustomQueueConfig, Fault, QueueMode, Settings
from horsies.model.settings.base import SettingPath as Place

if TYPE_CHECKING:
    from horsies.config.keys import KeyPath, SettingKey


# Values as people write them outside of code.

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def resolve_none(key: SettingKey, value: Any) -> Any:
    """The value itself, or None where the key allows it and it was written as "none" or -1."""
    says_none = value.strip().lower() == "none" if isinstance(value, str) else type(value) is int and value == -1
    return None if key.is_optional and says_none else value


def parse_env_text(key: SettingKey, text: str) -> Any:
    """The value an environment variable stands for; text that cannot be read stays text, for the model to refuse."""
    match key.env_format:
        case EnvFormat.TEXT:
            return text
        case EnvFormat.BOOLEAN:
            return _BOOLEANS.get(text.strip().lower(), text)
        case EnvFormat.JSON:
            try:
                return json.loads(text)
            except ValueError:
                return text


# Where a value came from, and which of two origins wins.


class Precedence(IntEnum):
    """Origins in their order: a later one replaces an earlier one."""

    DEFAULT = 0
    FALLBACK = 1
    DISCOVERED_FILE = 2
    CODE = 3
    NAMED_FILE = 4
    ENVIRONMENT = 5
    OPTION = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """An origin as `config show` prints it; `source` is empty for values that need no introduction."""

    precedence: Precedence
    source: str = ""
    location: SourceLocation | None = None
    nested_locations: Mapping[Place, SourceLocation] = field(
        default_factory=dict["Place", "SourceLocation"], repr=False
    )

    def __str__(self) -> str:
        if self.location is not None:
            return str(self.location)
        return self.source or self.precedence.name.lower()

    def for_path(self, path: Place) -> Origin:
        """The origin of what stands at `path` inside a value that is a list or a table."""
        for length in range(len(path), 0, -1):
            if location := self.nested_locations.get(path[:length]):
                return replace(self, location=location)
        return self


DEFAULT_ORIGIN = Origin(precedence=Precedence.DEFAULT)
CODE_ORIGIN = Origin(precedence=Precedence.CODE)
OPTION_ORIGIN = Origin(precedence=Precedence.OPTION, source="command line")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingValue:
    """A value for the setting at `target`; left out of the repr, for it may hold a password."""

    model_path: KeyPath
    value: Any = field(repr=False)
    origin: Origin


_QUEUES = ("app", "custom_queues")
_MODE = ("app", "queue_mode")


@dataclass(frozen=True, slots=True)
class Layer:
    """The values of one origin, and what is wrong with the names in it."""

    values: list[SettingValue] = field(default_factory=list[SettingValue])
    errors: list[ConfigurationError] = field(default_factory=list["ConfigurationError"])

    def add(self, path: KeyPath, value: Any, origin: Origin) -> None:
        """Keep the value under its key, or the error that there is no such key."""
        key = look_up(path)
        if isinstance(key, Fault):
            error = key.as_error(source=origin.source, location=origin.location)
            if error.message not in {known.message for known in self.errors}:
                self.errors.append(error)
            return
        if isinstance(value, str) and origin.precedence >= Precedence.ENVIRONMENT:
            value = parse_env_text(key, value)
        self.values.append(SettingValue(model_path=_target(key, path), value=resolve_none(key, value), origin=origin))

    @property
    def queue_names(self) -> set[str]:
        return {given.model_path[2] for given in self.values if given.model_path[:2] == _QUEUES}

    def with_implied_mode(self) -> Layer:
        """Queues imply the custom mode, with the rank of whoever named them."""
        queues = [given for given in self.values if given.model_path[:2] == _QUEUES]
        if queues and all(given.model_path != _MODE for given in self.values):
            self.values.append(SettingValue(model_path=_MODE, value=QueueMode.CUSTOM, origin=queues[0].origin))
        return self


def layer_from_file(file: ConfigFile, *, rank: Precedence) -> Layer:
    layer = Layer()
    for path, value in _leaves(file.table):
        location, inside = file.location_of(path), file.locations_inside(path)
        layer.add(
            path, value, Origin(precedence=rank, source=str(file.path), location=location, nested_locations=inside)
        )
    return layer.with_implied_mode()


def layer_from_environment(environ: Mapping[str, str], *, queue_names: Iterable[str]) -> Layer:
    """Every `HORSIES_SECTION__KEY`; names with a single underscore only are variables of another kind."""
    layer = Layer()
    known = {_as_variable(name): name for name in queue_names}
    for variable in sorted(name for name in environ if name.startswith("HORSIES_") and "__" in name):
        path = tuple(variable.removeprefix("HORSIES_").lower().split("__"))
        if path[0] == "queues" and len(path) > 1:
            path = (path[0], known.get(path[1], path[1]), *path[2:])
        layer.add(path, environ[variable], Origin(precedence=Precedence.ENVIRONMENT, source=variable))
    return layer.with_implied_mode()


def layer_from_database_url(environ: Mapping[str, str]) -> Layer:
    layer = Layer()
    if url := environ.get("DATABASE_URL"):
        layer.add(("broker", "database_url"), url, Origin(precedence=Precedence.FALLBACK, source="DATABASE_URL"))
    return layer


def layer_from_options(options: Mapping[str, object]) -> Layer:
    """Options by dotted key (`worker.processes`); None means that the option was not used."""
    layer = Layer()
    for name, value in options.items():
        if value is not None:
            layer.add(tuple(name.split(".")), value, OPTION_ORIGIN)
    return layer.with_implied_mode()


def layer_from_code(config: AppConfig) -> Layer:
    return Layer(
        [
            SettingValue(model_path=target, value=value, origin=CODE_ORIGIN)
            for target, value in _explicit_values(config, ("app",))
        ]
    )


def _explicit_values(settings: Settings, prefix: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    for name in settings.model_fields_set:
        value = getattr(settings, name)
        if isinstance(value, Settings):
            yield from _explicit_values(value, (*prefix, name))
        elif (*prefix, name) == _QUEUES:
            for queue in cast("list[CustomQueueConfig] | None", value) or ():
                yield from _explicit_values(queue, (*_QUEUES, queue.name))
        else:
            yield (*prefix, name), value


def _leaves(table: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Any]]:
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


def _target(key: SettingKey, path: KeyPath) -> KeyPath:
    return tuple(path[1] if part == "NAME" else part for part in key.model_path)


def _as_variable(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", name.lower())


# The lines on which the tables and keys of a TOML file stand, by a glance at their starts; tomllib does not tell.

_PART = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([\w-]+))\s*(?:\.|$)""")


def key_lines(text: str) -> Iterator[tuple[Place, int]]:
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


def _parts(name: str) -> KeyPath:
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

    def location_of(self, path: KeyPath) -> SourceLocation | None:
        """The line of the key, or of the nearest table around it; None when neither was recognised."""
        for length in range(len(path), 0, -1):
            if line := self.lines.get(path[:length]):
                return SourceLocation(file=str(self.path), line=line)
        return None

    def locations_inside(self, path: KeyPath) -> dict[Place, SourceLocation]:
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


def find_config_file(folder: Path) -> Path | None:
    """The nearest horsies.toml from `folder` upwards; folders that may not be looked into have none."""
    candidates = (place / FILE_NAME for place in (folder, *folder.parents))
    return next((path for path in candidates if _is_file(path)), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def read_config_file(path: Path) -> ConfigFile:
    """Read a file that must be there; whatever is wrong with it raises `ConfigurationError`."""
    text = _text_of(path)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as wrong:
        raise _syntax_error(path, str(wrong)) from None
    except RecursionError:
        hint = "no setting needs more than a few levels of lists or tables"
        raise config_file_error(f"{path}: not readable as TOML: nested too deeply", hint=hint) from None
    return ConfigFile(path=path, table=table, lines=dict(key_lines(text)))


def _text_of(path: Path) -> str:
    try:
        # Editors on Windows put a byte order mark first.
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise config_file_error(f"{path}: no such file", hint='"horsies init" writes one') from None
    except IsADirectoryError:
        raise config_file_error(f"{path}: is a folder", hint=f"name the file in it: {path / FILE_NAME}") from None
    except UnicodeDecodeError as wrong:
        raise config_file_error(f"{path}: is not UTF-8 (byte {wrong.start})", hint="save it as UTF-8") from None
    except OSError as wrong:
        hint = "let this user read it, or name another file with --config"
        raise config_file_error(f"{path}: cannot be read: {wrong.strerror}", hint=hint) from None


def _syntax_error(path: Path, message: str) -> ConfigurationError:
    place = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    location = SourceLocation(file=str(path), line=int(place[1]), column=int(place[2])) if place else None
    text = message[: place.start()] if place else message
    at = f"{path}:{place[1]}:{place[2]}" if place else str(path)
    return config_file_error(f"{at}: not valid TOML: {text}", hint=_SYNTAX_HINT, location=location)


def config_file_error(message: str, *, hint: str, location: SourceLocation | None = None) -> ConfigurationError:
    """HRS-206 for a file that cannot be used as it is."""
    return ConfigurationError(message, code=ErrorCode.CLI_INVALID_ARGS, hint=hint, location=location)
