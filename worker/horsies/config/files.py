"""Finding, reading and parsing horsies.toml, with the place of everything in it."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from horsies.errors import ConfigurationError, ErrorCode, SourceLocation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from horsies.config.keys import Target

FILE_NAME = "horsies.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """A file that was read: its tables, and the line on which each key stands."""

    path: Path
    table: Mapping[str, Any]
    lines: Mapping[Target, int]

    def location_of(self, path: Target) -> SourceLocation | None:
        """The line of the key, or of the nearest table around it; None when neither was recognised."""
        for length in range(len(path), 0, -1):
            if line := self.lines.get(path[:length]):
                return SourceLocation(file=str(self.path), line=line)
        return None


def find(folder: Path) -> Path | None:
    """The nearest horsies.toml from `folder` upwards."""
    candidates = (place / FILE_NAME for place in (folder, *folder.parents))
    return next((path for path in candidates if path.is_file()), None)


def read(path: Path) -> ConfigFile:
    """Read a file that must be there; whatever is wrong with it raises `ConfigurationError`."""
    text = _text_of(path)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as wrong:
        raise _syntax_error(path, str(wrong)) from None
    return ConfigFile(path=path, table=table, lines=dict(_lines(text)))


def _text_of(path: Path) -> str:
    try:
        # Editors on Windows put a byte order mark first.
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path}: no such file", code=ErrorCode.CLI_INVALID_ARGS, hint='"horsies init" writes one'
        ) from None
    except IsADirectoryError:
        raise ConfigurationError(f"{path}: is a folder", hint=f"name the file in it: {path / FILE_NAME}") from None
    except UnicodeDecodeError as wrong:
        raise ConfigurationError(f"{path}: is not UTF-8 (byte {wrong.start})", hint="save it as UTF-8") from None
    except OSError as wrong:
        raise ConfigurationError(f"{path}: cannot be read: {wrong.strerror}") from None


def _syntax_error(path: Path, message: str) -> ConfigurationError:
    place = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    location = SourceLocation(file=str(path), line=int(place[1]), column=int(place[2])) if place else None
    text = message[: place.start()] if place else message
    at = f"{path}:{place[1]}:{place[2]}" if place else str(path)
    return ConfigurationError(f"{at}: not valid TOML: {text}", location=location)


def _lines(text: str) -> Iterator[tuple[Target, int]]:
    """The lines of tables and keys, by a glance at their starts; tomllib does not tell."""
    table: Target = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\[?([^\[\]]+)\]", line):
            table = _parts(header[1])
            yield table, number
        elif key := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            yield table + _parts(key[1]), number


def _parts(name: str) -> Target:
    return tuple(part.strip().strip("\"'") for part in name.split("."))
