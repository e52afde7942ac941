"""The parts of a line that says a filter: words, keys with values, and what is negated."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SPACE = re.compile(r"\s*")
_KEY = re.compile(r"([A-Za-z_]+)(:|<=|>=|<|>)")
_BARE = re.compile(r'[^\s,"()]+')
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class Unreadable(ValueError):
    """Text that says no filter, from `position` on."""

    def __init__(self, position: int, message: str, hint: str) -> None:
        super().__init__(message)
        self.position = position
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    text: str
    position: int
    is_quoted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`key` and `operator` are empty for a bare word."""

    position: int
    is_negated: bool
    key: str
    operator: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Parts in `-(…)`, of which not all may hold."""

    position: int
    parts: tuple[Part, ...]


class Reader:
    """Reads a line from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> list[Part | Group]:
        """Every part of the line; `Unreadable` at the first that makes no sense."""
        parts: list[Part | Group] = []
        while not self._is_at_end():
            parts.append(self._group() if self._take("-(") else self._part())
        return parts

    def _group(self) -> Group:
        began, parts = self._at - 2, list[Part]()
        while not self._take(")"):
            if self._is_at_end():
                raise Unreadable(began, "a group that is not closed", "close it with )")
            parts.append(self._part())
        return Group(position=began, parts=tuple(parts))

    def _part(self) -> Part:
        self._skip_space()
        position, is_negated = self._at, self._take("-")
        head = _KEY.match(self._text, self._at)
        if head is None:
            return Part(position=position, is_negated=is_negated, key="", operator="", values=(self._value(),))
        self._at = head.end()
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        return Part(
            position=position,
            is_negated=is_negated,
            key=head[1].lower(),
            operator=head[2],
            values=tuple(values),
        )

    def _value(self) -> Value:
        position = self._at
        if quoted := _QUOTED.match(self._text, position):
            self._at = quoted.end()
            return Value(text=_ESCAPED.sub(r"\1", quoted[1]), position=position, is_quoted=True)
        if bare := _BARE.match(self._text, position):
            self._at = bare.end()
            return Value(text=bare[0], position=position, is_quoted=False)
        if self._text.startswith('"', position):
            raise Unreadable(position, "a quotation that is not closed", 'close it with "')
        self._refuse_bracket()
        raise Unreadable(position, "a value is missing", "write it next to the sign, without a space")

    def _refuse_bracket(self) -> None:
        """Say what is wrong with a bracket that stands here, where none belongs."""
        rest = self._text[self._at :]
        hint = "-(…) negates what is in it; quotes keep a bracket as text"
        if rest.startswith(")"):
            raise Unreadable(self._at, "a bracket that was not opened", hint)
        if rest.startswith("("):
            fault = "brackets without a minus" if ")" in rest else "a bracket that is not closed"
            raise Unreadable(self._at, fault, hint)

    def _take(self, sign: str) -> bool:
        if sign != ",":  # which joins values only where nothing stands between
            self._skip_space()
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        return True

    def _is_at_end(self) -> bool:
        self._skip_space()
        return self._at == len(self._text)

    def _skip_space(self) -> None:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at


def written(value: str) -> str:
    """A value as it stands in a line: in quotes where it would be taken apart otherwise."""
    if _BARE.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
