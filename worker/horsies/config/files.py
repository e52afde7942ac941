"""Finding, reading and parsing horsies.toml, with the place of everything in it."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horsies.config.lines import lines_of
from horsies.errors import ConfigurationError, ErrorCode, SourceLocation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horsies.config.keys import Target
    from horsies.model.settings.fault import Path as Place

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
