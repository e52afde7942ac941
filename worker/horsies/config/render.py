"""horsies.toml as text: every key with its comment, values formatted by tomli-w."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import tomli_w

from horsies.config.keys import COMMENTS, ENTRY_SECTION, KEYS, QUEUE_SECTION, SCHEDULE_ENTRIES_KEY
from horsies.config.loader import value_at
from horsies.config.sources import FILE_NAME, config_file_error
from horsies.model.settings import DatabaseUrl, Settings

if TYPE_CHECKING:
    from horsies.config.keys import KeyPath, SettingKey
    from horsies.config.loader import LoadedSettings
    from horsies.config.sources import Origin


SAMPLE_VALUES: Mapping[str, Any] = {"app.locator": "horsies.sample:app"}

_INTRODUCTION = """\
# Settings of horsies. Lines that start with "# name =" show a setting that is not made: remove the # to make it.
# A variable HORSIES_SECTION__KEY replaces a value of this file, a command-line option replaces both.
# "horsies config show" lists all values in use and where they come from.
"""
_HEADERS = {QUEUE_SECTION: "[queues.mail]", ENTRY_SECTION: "[[schedule.entries]]"}


def render_toml(values: Mapping[str, Any] | None = None, *, write_defaults: bool = True) -> str:
    """The text of a horsies.toml with every key at its default, but for those in `values` (by dotted key).

    Unless `settled`, defaults are shown as comments: a file that sets nothing lets later defaults through.
    """
    sections = ("\n".join(_section(section, values or {}, settled=write_defaults)) for section in COMMENTS)
    return _INTRODUCTION + "".join(f"\n{text}\n" for text in sections)


def _section(section: str, values: Mapping[str, Any], *, settled: bool) -> Iterator[str]:
    is_sample = section in _HEADERS
    yield f"# {_HEADERS[section]}" if is_sample else f"[{section}]"
    tables: list[SettingKey] = []
    for key in (key for key in KEYS.values() if key.section == section):
        if section == "tui" and isinstance(key.example, dict):
            tables.append(key)  # a table ends the section it stands in, so it comes last
        else:
            yield from _key(key, values, is_sample=is_sample or not settled)
    for key in tables:
        yield from ("", f"# {key.comment}", *_commented(f"[{key.path}]\n{_toml(key.example)}"))


def _key(key: SettingKey, values: Mapping[str, Any], *, is_sample: bool) -> Iterator[str]:
    yield f"# {key.comment}"
    is_given = key.path in values
    value = values[key.path] if is_given else key.default if key.example is None else key.example
    text = _line(key.name, value)
    is_setting = is_given or (key.example is None and not is_sample)
    yield from text.splitlines() if is_setting else _commented(text)


def _line(name: str, value: Any) -> str:
    # A table of its own would end the section, so it is written on one line.
    if isinstance(value, dict):
        return f"{name} = {_inline(cast('dict[str, Any]', value))}"
    return _toml({name: list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value})


def _toml(table: Mapping[str, Any]) -> str:
    return tomli_w.dumps(table).rstrip("\n")


def _inline(table: Mapping[str, Any]) -> str:
    pairs = ", ".join(_toml({name: value}) for name, value in table.items())
    return f"{{ {pairs} }}" if pairs else "{}"


def _commented(text: str) -> Iterator[str]:
    return (f"# {line}" for line in text.splitlines())


# All settings as rows for people, with their origins and without their secrets.

HIDDEN = "***"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One setting: its key, its value as plain data that JSON can hold, and its origin."""

    key: str
    value: Any
    origin: Origin


def describe_settings(loaded: LoadedSettings) -> tuple[SettingRow, ...]:
    """Every setting in the order of horsies.toml, passwords hidden."""
    patterns = [re.compile(pattern, re.IGNORECASE) for pattern in loaded.tui.mask_keys]

    def is_secret(name: str) -> bool:
        return any(pattern.search(name) for pattern in patterns)

    return tuple(
        SettingRow(
            key=key,
            value=_to_plain(value_at(getattr(loaded, target[0]), target[1:]), is_secret),
            origin=loaded.origin_of(target),
        )
        for key, target in _rows(loaded)
    )


def _rows(loaded: LoadedSettings) -> Iterator[tuple[str, KeyPath]]:
    for section, names in COMMENTS.items():
        if section == QUEUE_SECTION:
            for queue in loaded.app.custom_queues or ():
                yield from (
                    (f"queues.{queue.name}.{name}", ("app", "custom_queues", queue.name, name)) for name in names
                )
        elif section == ENTRY_SECTION:
            yield SCHEDULE_ENTRIES_KEY.path, SCHEDULE_ENTRIES_KEY.model_path
        else:
            keys = (KEYS[f"{section}.{name}"] for name in names)
            yield from ((key.path, key.model_path) for key in keys)


def _to_plain(value: Any, is_secret: Callable[[str], bool]) -> Any:
    match value:
        case DatabaseUrl():
            return value.masked
        case Enum():
            return value.value
        case Settings():
            return _to_plain({name: getattr(value, name) for name in type(value).model_fields}, is_secret)
        case list() | tuple():
            return [_to_plain(item, is_secret) for item in cast("list[Any]", value)]
        case Mapping():
            table = {str(name): item for name, item in cast("Mapping[Any, Any]", value).items()}
            return {name: HIDDEN if is_secret(name) else _to_plain(item, is_secret) for name, item in table.items()}
        case date() | time():
            return value.isoformat()
        case None | bool() | int() | str():
            return value
        case float() if math.isfinite(value):
            return value
        case _:
            return str(value)  # nan and inf, which JSON cannot hold, and values that only code can give


# The horsies.toml that a new project starts from.


def write_config_file(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Write a horsies.toml for a new project, whole or not at all.

    `path` is the file, or the folder to put it in. An existing file stays unless `force` is given; what is no regular
    file (a link, a device) stays in any case.
    """
    target = Path(path)
    try:
        if target.is_dir():
            target /= FILE_NAME
        elif os.fspath(path).endswith("/"):
            raise config_file_error(f"there is no folder {target}", hint="make the folder first")
        _check_target(target)
        _write(target, render_toml(write_defaults=False), force=force)
    except FileExistsError:
        raise config_file_error(f"{target} exists already", hint="--force replaces it") from None
    except OSError as wrong:
        hint = "choose a place that this user may write to: horsies init --path FILE"
        raise config_file_error(f"{target}: cannot be written: {wrong.strerror}", hint=hint) from wrong
    return target


def _check_target(target: Path) -> None:
    if not target.parent.is_dir():
        raise config_file_error(f"{target}: there is no folder {target.parent}", hint="make the folder first")
    if os.path.lexists(target) and not stat.S_ISREG(target.lstat().st_mode):
        raise config_file_error(f"{target}: is not a regular file", hint="name another one, or remove it first")


def _write(target: Path, text: str, *, force: bool) -> None:
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        if force:
            draft.replace(target)
        else:
            target.hardlink_to(draft)  # which is refused where there is a file, also one that has just come up
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
