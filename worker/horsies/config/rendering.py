"""horsies.toml as text: every key with its comment, values formatted by tomli-w."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import tomli_w

from horsies.config.comments import COMMENTS
from horsies.config.keys import ENTRY_SECTION, KEYS, QUEUE_SECTION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from horsies.config.keys import Key

SAMPLE_VALUES: Mapping[str, Any] = {"app.locator": "horsies.sample:app"}

_INTRODUCTION = """\
# Settings of horsies. Lines that start with "# name =" show a setting that is not made: remove the # to make it.
# A variable HORSIES_SECTION__KEY replaces a value of this file, a command-line option replaces both.
# "horsies config show" lists all values in use and where they come from.
"""
_HEADERS = {QUEUE_SECTION: "[queues.mail]", ENTRY_SECTION: "[[schedule.entries]]"}


def render(values: Mapping[str, Any] | None = None, *, settled: bool = True) -> str:
    """The text of a horsies.toml with every key at its default, but for those in `values` (by dotted key).

    Unless `settled`, defaults are shown as comments: a file that sets nothing lets later defaults through.
    """
    sections = ("\n".join(_section(section, values or {}, settled=settled)) for section in COMMENTS)
    return _INTRODUCTION + "".join(f"\n{text}\n" for text in sections)


def _section(section: str, values: Mapping[str, Any], *, settled: bool) -> Iterator[str]:
    is_sample = section in _HEADERS
    yield f"# {_HEADERS[section]}" if is_sample else f"[{section}]"
    tables: list[Key] = []
    for key in (key for key in KEYS.values() if key.section == section):
        if section == "tui" and isinstance(key.example, dict):
            tables.append(key)  # a table ends the section it stands in, so it comes last
        else:
            yield from _key(key, values, is_sample=is_sample or not settled)
    for key in tables:
        yield from ("", f"# {key.comment}", *_commented(f"[{key.path}]\n{_toml(key.example)}"))


def _key(key: Key, values: Mapping[str, Any], *, is_sample: bool) -> Iterator[str]:
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
