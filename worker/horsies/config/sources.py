"""The sources of settings: files, environment, code and options; every value keeps its origin."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from horsies.config.keys import SECTION_KEYS, SECTIONS, look_up
from horsies.errors import ConfigurationError, ErrorCode, SourceLocation
from horsies.model.settings import AppConfig, CustomQueueConfig, Fault, QueueMode, Settings
from horsies.model.settings.base import SettingPath
from horsies.trusted_files import distrust_reason

if TYPE_CHECKING:
    from horsies.config.keys import KeyPath


class Precedence(IntEnum):
    """Sources of settings; a higher one overrides a lower one."""

    DEFAULT = 0
    FALLBACK = 1
    """The variable DATABASE_URL: not specific to horsies, so every other source overrides it."""
    DISCOVERED_FILE = 2
    """A horsies.toml found in the working folder or a parent."""
    CODE = 3
    EXPLICIT_FILE = 4
    """A file given with --config or HORSIES_CONFIG."""
    ENVIRONMENT = 5
    OPTION = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a value came from, as `config show` prints it; `source` is empty for defaults and code."""

    precedence: Precedence
    source: str = ""
    path: SettingPath = ()
    """The path of the value in a file."""
    lines: Mapping[SettingPath, int] = field(default_factory=dict["SettingPath", int], repr=False)

    def __str__(self) -> str:
        return str(self.location or self.source or self.precedence.name.lower())

    @property
    def location(self) -> SourceLocation | None:
        """The line of the value or of the innermost table around it; None if the source is not a file."""
        for length in range(len(self.path), 0, -1):
            if line := self.lines.get(self.path[:length]):
                return SourceLocation(file=self.source, line=line)
        return None

    def of_item(self, path: SettingPath) -> Origin:
        """Return the origin of the item at `path` inside this value, which is a list or table."""
        return replace(self, path=self.path + path)


DEFAULT_ORIGIN = Origin(precedence=Precedence.DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingValue:
    """A value and its origin; the repr omits the value, which may contain a password."""

    value: Any = field(repr=False)
    origin: Origin


_QUEUES = ("app", "custom_queues")
_MODE = ("app", "queue_mode")
SCHEDULES = ("app", "schedule", "schedules")
_FILES = (Precedence.DISCOVERED_FILE, Precedence.EXPLICIT_FILE)


@dataclass(frozen=True, slots=True)
class GivenSettings:
    """The settings of all sources, by their path in the models, and the errors for unknown keys.

    Of each setting the value with the highest precedence is kept, so sources may be added in any order. Only the
    environment comes after files and code: it needs the names of their queues.
    """

    values: dict[KeyPath, SettingValue] = field(default_factory=dict["KeyPath", SettingValue])
    errors: list[ConfigurationError] = field(default_factory=list["ConfigurationError"])

    def add_file(self, file: ConfigFile, *, precedence: Precedence) -> None:
        for path, value in _keys_and_values(file.table):
            origin = Origin(precedence=precedence, source=str(file.path), path=path, lines=file.lines)
            self._add_key(path, value, origin)

    def add_code(self, config: AppConfig) -> None:
        for path, value in explicit_values(config):
            self._add(path, value, Origin(precedence=Precedence.CODE))

    def add_environment(self, environ: Mapping[str, str]) -> None:
        """Add every `HORSIES_SECTION__KEY`; one underscore is an error if it means a setting."""
        # The name of a variable has only letters, digits and underscores, so other characters match an underscore.
        queues = {re.sub(r"[^a-z0-9]", "_", path[2].lower()): path[2] for path in self.values if path[:2] == _QUEUES}
        for variable in sorted(name for name in environ if name.startswith("HORSIES_") and "__" in name):
            path = tuple(variable.removeprefix("HORSIES_").lower().split("__"))
            if path[0] == "queues" and len(path) > 1:
                path = (path[0], queues.get(path[1], path[1]), *path[2:])
            self._add_key(path, environ[variable], Origin(precedence=Precedence.ENVIRONMENT, source=variable))
        for variable in sorted(name for name in environ if name.startswith("HORSIES_") and "__" not in name):
            section, _, name = variable.removeprefix("HORSIES_").lower().partition("_")
            if name in SECTION_KEYS.get(section, ()):
                text, hint = (
                    "needs two underscores after the section",
                    f"write HORSIES_{section.upper()}__{name.upper()}",
                )
                fault = Fault(path=(variable,), text=text, hint=hint, code=ErrorCode.CONFIG_UNKNOWN_KEY)
                self.errors.append(fault.as_error())
        if url := environ.get("DATABASE_URL"):
            origin = Origin(precedence=Precedence.FALLBACK, source="DATABASE_URL")
            self._add_key(("broker", "database_url"), url, origin)

    def add_options(self, options: Mapping[str, object]) -> None:
        """Add options by dotted key (`worker.processes`); None means that the option was not given."""
        for name, value in options.items():
            if value is not None:
                origin = Origin(precedence=Precedence.OPTION, source="command line")
                self._add_key(tuple(name.split(".")), value, origin)

    def drop_discovered_queues(self, *, kept: Container[str]) -> None:
        """Drop the queues of a discovered file that are not in `kept`."""
        for path, given in tuple(self.values.items()):
            if path[:2] == _QUEUES and given.origin.precedence < Precedence.CODE and path[2] not in kept:
                del self.values[path]

    def _add_key(self, path: KeyPath, value: Any, origin: Origin) -> None:
        """Add the value of the key at `path`, or an error if the key is unknown."""
        key = look_up(path)
        if isinstance(key, Fault):
            error = key.as_error(source=origin.source, location=origin.location)
            # An unknown section is one error, however many keys it has.
            if error.message not in {known.message for known in self.errors}:
                self.errors.append(error)
            return
        # Variables and options are always text; a string in a file or in code is meant as a string.
        if isinstance(value, str) and origin.precedence >= Precedence.ENVIRONMENT:
            value = key.parse_text(value)
        model_path = tuple(path[1] if part == "NAME" else part for part in key.model_path)
        self._add(model_path, key.resolve_none(value), origin)
        if model_path[:2] == _QUEUES and self.origin_of(_MODE).precedence < origin.precedence:
            self._add(_MODE, QueueMode.CUSTOM, origin)  # implied, unless the same source sets it

    def _add(self, model_path: KeyPath, value: Any, origin: Origin) -> None:
        if model_path == SCHEDULES and origin.precedence in _FILES and isinstance(value, list):
            self._add_schedules(cast("list[Any]", value), origin)
        elif self.origin_of(model_path).precedence <= origin.precedence:
            self.values[model_path] = SettingValue(value=value, origin=origin)

    def _add_schedules(self, entries: list[Any], origin: Origin) -> None:
        """Add the schedules of a file to those of code; a name used in both is an error."""
        known = self.values.get(SCHEDULES)
        value: list[Any] = [entry | {"source": "toml"} if type(entry) is dict else entry for entry in entries]
        # Those of the file first, so that its line numbers are found by their index.
        value += [] if known is None else known.value
        self.values[SCHEDULES] = SettingValue(value=value, origin=origin)

    def origin_of(self, model_path: KeyPath) -> Origin:
        given = self.values.get(model_path)
        return DEFAULT_ORIGIN if given is None else given.origin


def explicit_values(settings: Settings, prefix: KeyPath = ("app",)) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the path and value of every setting given in code."""
    for name in settings.model_fields_set:
        value = getattr(settings, name)
        if isinstance(value, Settings):
            yield from explicit_values(value, (*prefix, name))
        elif (*prefix, name) == _QUEUES:
            for queue in cast("list[CustomQueueConfig] | None", value) or ():
                yield from explicit_values(queue, (*_QUEUES, queue.name))
        else:
            yield (*prefix, name), value


def _keys_and_values(table: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the path and value of every key; queues are nested one level deeper than other sections."""
    for section, content in table.items():
        if not isinstance(content, dict) or (not content and section not in SECTIONS):
            yield (section,), content
            continue
        for name, value in cast("dict[str, Any]", content).items():
            if section == "queues" and isinstance(value, dict):
                # An empty table defines a queue with all defaults; one value is enough to add it.
                inner = cast("dict[str, Any]", value) or {"priority": 1}
                yield from (((section, name, key), item) for key, item in inner.items())
            else:
                yield (section, name), value


# Finding and reading horsies.toml

FILE_NAME = "horsies.toml"

_SYNTAX_HINT = "write name = value, with strings in quotes, or [section]; a key may appear only once in its section"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """A parsed file, and the line number of each key."""

    path: Path
    table: Mapping[str, Any]
    lines: Mapping[SettingPath, int]


def working_folder() -> Path:
    """Return the current directory, or `.` if it was deleted; then no file is found in or above it."""
    try:
        return Path.cwd()
    except OSError:
        return Path()


def find_config_file(folder: Path, *, trusted_uid: int | None = None) -> Path | None:
    """Return the nearest horsies.toml in `folder` or its parents, up to the home folder or a mount point.

    Skips folders that may not be read. Raises HRS-206 for a file or folder that another user than `trusted_uid` owns or
    may write, because the file names code to run.
    """
    for directory in folders_to_search(folder):
        with suppress(OSError):
            if (directory / FILE_NAME).is_file():
                return _check_discovered(directory / FILE_NAME, trusted_uid)
    return None


def folders_to_search(folder: Path) -> Iterator[Path]:
    """Yield `folder` and its parents, up to the home folder or a mount point."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises for a user without one
    for directory in (folder, *folder.parents):
        yield directory
        # A relative folder is a deleted one, which has no parents.
        if not directory.is_absolute() or directory in (home, home.resolve()) or os.path.ismount(directory):
            break


def _check_discovered(path: Path, trusted_uid: int | None) -> Path:
    # The folder too: a user who can write there can replace the file, and the app is imported from there.
    for file in (path.parent, path):
        if reason := distrust_reason(file.stat(), trusted_uid=trusted_uid):
            message = f"{path}: not used, because {'it' if file is path else file} is {reason}"
            raise config_file_error(message, hint=f"to use it anyway: --config {shlex.quote(str(path))}")
    return path


def read_config_file(path: Path) -> ConfigFile:
    """Read a file that must exist; raises ConfigurationError if it cannot be read or parsed."""
    text = _read_text(path)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(path, str(error)) from None
    except RecursionError:
        hint = "no setting needs more than a few levels of lists or tables"
        raise config_file_error(f"{path}: not valid TOML: nested too deeply", hint=hint) from None
    return ConfigFile(path=path, table=table, lines=dict(key_lines(text)))


def _read_text(path: Path) -> str:
    try:
        # utf-8-sig, because some editors on Windows write a byte order mark.
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise config_file_error(f"{path}: no such file", hint='run "horsies init" to create one') from None
    except IsADirectoryError:
        raise config_file_error(f"{path}: is a folder", hint=f"give the file in it: {path / FILE_NAME}") from None
    except UnicodeDecodeError as error:
        raise config_file_error(f"{path}: not UTF-8 (byte {error.start})", hint="save it as UTF-8") from None
    except OSError as error:
        hint = "make it readable for this user, or give another file with --config"
        raise config_file_error(f"{path}: cannot read: {error.strerror}", hint=hint) from None


def _syntax_error(path: Path, message: str) -> ConfigurationError:
    position = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    location = SourceLocation(file=str(path), line=int(position[1]), column=int(position[2])) if position else None
    text = message[: position.start()] if position else message
    where = f"{path}:{position[1]}:{position[2]}" if position else str(path)
    return config_file_error(f"{where}: not valid TOML: {text}", hint=_SYNTAX_HINT, location=location)


def config_file_error(message: str, *, hint: str, location: SourceLocation | None = None) -> ConfigurationError:
    """Return HRS-206 for a file that cannot be read, parsed or written."""
    return ConfigurationError(message, code=ErrorCode.CLI_INVALID_ARGS, hint=hint, location=location)


# Line numbers of TOML keys, found with regular expressions because tomllib does not report them

_KEY_PART = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([\w-]+))\s*(?:\.|$)""")


def key_lines(text: str) -> Iterator[tuple[SettingPath, int]]:
    """Yield every table and key with its line number; items of an array of tables are numbered from 0."""
    table: SettingPath = ()
    item_counts: Counter[SettingPath] = Counter()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*(\[\[?)([^\[\]]+)\]", line):
            name = _split_key(header[2])
            if header[1] == "[[":
                item_counts[name] += 1
                if item_counts[name] == 1:
                    yield name, number
            table = _path_in_latest_item(name, item_counts)
            yield table, number
        elif key := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            yield table + _split_key(key[1]), number


def _path_in_latest_item(name: SettingPath, item_counts: Counter[SettingPath]) -> SettingPath:
    """Add the item's index: `schedule.entries.pattern` below the second entry is `schedule.entries[1].pattern`."""
    for length in range(len(name), 0, -1):
        if count := item_counts[name[:length]]:
            return (*name[:length], count - 1, *name[length:])
    return name


def _split_key(name: str) -> KeyPath:
    return tuple("".join(part) for part in _KEY_PART.findall(name))
