"""Renders horsies.toml with every key and its comment, and lists all settings with their origins."""

from __future__ import annotations

import math
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import tomli_w

from horsies.config.keys import ENTRY_SECTION, QUEUE_SECTION, SECTION_KEYS
from horsies.config.loader import value_at
from horsies.config.sources import FILE_NAME, config_file_error
from horsies.model.settings import DatabaseUrl, Settings
from horsies.model.text import mask_values

if TYPE_CHECKING:
    from horsies.config.keys import KeyPath, SettingKey
    from horsies.config.loader import LoadedSettings
    from horsies.config.sources import Origin


SAMPLE_VALUES: Mapping[str, Any] = {"app.locator": "horsies.sample:app"}

_INTRODUCTION = """\
# Settings of horsies. Values are the defaults unless the comment gives one; remove "# " to set a commented-out key.
# An environment variable HORSIES_SECTION__KEY overrides a value in this file, a command-line option overrides both.
# To list all values in use and where they come from, run "horsies config show".
"""
# Sections shown commented out, with a sample name.
_SAMPLE_HEADERS = {QUEUE_SECTION: "[queues.mail]", ENTRY_SECTION: "[[schedule.entries]]"}


def render_toml(values: Mapping[str, Any] | None = None, *, write_defaults: bool = True) -> str:
    """Render a horsies.toml with every key; `values` (by dotted key) replace defaults.

    Without `write_defaults`, defaults are commented out, so that new defaults of a later version take effect.
    """
    texts = ("\n".join(_render_section(name, values or {}, write_defaults=write_defaults)) for name in SECTION_KEYS)
    return _INTRODUCTION + "".join(f"\n{text}\n" for text in texts)


def _render_section(section: str, values: Mapping[str, Any], *, write_defaults: bool) -> Iterator[str]:
    is_sample = section in _SAMPLE_HEADERS
    yield f"# {_SAMPLE_HEADERS[section]}" if is_sample else f"[{section}]"
    keys = [key for key in SECTION_KEYS[section].values() if key.path != ENTRY_SECTION]
    # Tables last, because in TOML a table header ends the section above it.
    tables = [key for key in keys if section == "tui" and isinstance(key.example, dict)]
    for key in keys:
        if key not in tables:
            yield from _render_key(key, values, is_sample=is_sample or not write_defaults)
    for key in tables:
        yield from ("", f"# {key.comment}", *_comment_out(f"[{key.path}]\n{_to_toml(key.example)}"))


def _render_key(key: SettingKey, values: Mapping[str, Any], *, is_sample: bool) -> Iterator[str]:
    yield f"# {key.comment}"
    is_given = key.path in values
    value = values[key.path] if is_given else key.default if key.example is None else key.example
    text = _render_assignment(key.name, value)
    is_active = is_given or (key.example is None and not is_sample)
    yield from text.splitlines() if is_active else _comment_out(text)


def _render_assignment(name: str, value: Any) -> str:
    if isinstance(value, dict):
        # As an inline table, because a table header would end the section.
        pairs = ", ".join(_to_toml({key: item}) for key, item in cast("dict[str, Any]", value).items())
        return f"{name} = {{ {pairs} }}" if pairs else f"{name} = {{}}"
    return _to_toml({name: list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value})


def _to_toml(table: Mapping[str, Any]) -> str:
    return tomli_w.dumps(table).rstrip("\n")


def _comment_out(text: str) -> Iterator[str]:
    return (f"# {line}" for line in text.splitlines())


# Settings in use, for `config show`


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One setting: its key, its value as plain JSON data, and its origin."""

    key: str
    value: Any
    origin: Origin


def describe_settings(loaded: LoadedSettings) -> tuple[SettingRow, ...]:
    """List every setting in the order of horsies.toml, with secrets redacted."""
    return tuple(
        SettingRow(
            key=key,
            value=mask_values(_to_plain(value_at(loaded, path)), loaded.tui.mask_keys),
            origin=loaded.origin_of(path),
        )
        for key, path in _keys_with_paths(loaded)
    )


def _keys_with_paths(loaded: LoadedSettings) -> Iterator[tuple[str, KeyPath]]:
    for section, keys in SECTION_KEYS.items():
        if section == QUEUE_SECTION:
            for queue in loaded.app.custom_queues or ():
                path = ("app", "custom_queues", queue.name)
                yield from ((f"queues.{queue.name}.{name}", (*path, name)) for name in keys)
        elif section != ENTRY_SECTION:  # the key `schedule.entries` has them all
            yield from ((key.path, key.model_path) for key in keys.values())


def _to_plain(value: Any) -> Any:
    match value:
        case DatabaseUrl():
            return value.masked
        case Enum():
            return value.value
        case Settings():
            return {name: _to_plain(getattr(value, name)) for name in type(value).model_fields}
        case list() | tuple():
            return [_to_plain(item) for item in cast("list[Any]", value)]
        case Mapping():
            return {str(name): _to_plain(item) for name, item in cast("Mapping[Any, Any]", value).items()}
        case date() | time():
            return value.isoformat()
        case None | bool() | int() | str():
            return value
        case float() if math.isfinite(value):
            return value
        case _:
            return str(value)  # NaN and Infinity, which JSON does not have, and values that only code can set


# Writing horsies.toml for a new project


def write_config_file(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Write a horsies.toml for a new project, atomically.

    `path` is the file or its folder. `force` overwrites a regular file; links and devices are never replaced.
    """
    target = Path(path)
    try:
        if target.is_dir():
            target /= FILE_NAME
        elif os.fspath(path).endswith("/"):
            raise config_file_error(f"no such folder: {target}", hint="create the folder first")
        if not target.parent.is_dir():
            raise config_file_error(f"{target}: no such folder: {target.parent}", hint="create the folder first")
        if os.path.lexists(target) and not stat.S_ISREG(target.lstat().st_mode):
            raise config_file_error(f"{target}: not a regular file", hint="choose another name, or remove it first")
        _write_atomically(target, render_toml(write_defaults=False), force=force)
    except FileExistsError:
        raise config_file_error(f"{target} already exists", hint="use --force to overwrite it") from None
    except OSError as error:
        hint = "choose a writable path with horsies init --path FILE"
        raise config_file_error(f"{target}: cannot write: {error.strerror}", hint=hint) from error
    return target


def _write_atomically(target: Path, text: str, *, force: bool) -> None:
    # A name that nobody can guess, and a new file: a symlink of another user must not make us write elsewhere.
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
        if force:
            draft.replace(target)
        else:
            target.hardlink_to(draft)  # fails if the file exists, even if it was created a moment ago
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
