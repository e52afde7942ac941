"""Which arguments a function takes, checked as a call would check them, without making the call."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from horsies.codec.wire import PayloadRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The parameters of a function; `rest` and `extra` are the names behind `*` and `**`."""

    positional: tuple[str, ...]
    keywords: frozenset[str]
    required: tuple[str, ...]
    rest: str | None
    extra: str | None
    _by_position: dict[int, tuple[str, ...]] = field(default_factory=dict["int", "tuple[str, ...]"], compare=False)

    @classmethod
    def of(cls, signature: inspect.Signature) -> Shape:
        parameters = signature.parameters.values()
        return cls(
            positional=tuple(each.name for each in parameters if each.kind in _BY_POSITION),
            keywords=frozenset(each.name for each in parameters if each.kind in _BY_KEYWORD),
            required=tuple(each.name for each in parameters if _is_required(each)),
            rest=next((each.name for each in parameters if each.kind is inspect.Parameter.VAR_POSITIONAL), None),
            extra=next((each.name for each in parameters if each.kind is inspect.Parameter.VAR_KEYWORD), None),
        )

    def check(self, count: int, keywords: Collection[str]) -> None:
        """Refuse so many positional arguments with these keywords unless a call with them would bind."""
        if count > len(self.positional) and self.rest is None:
            raise PayloadRefused(f"{count} positional arguments given, at most {len(self.positional)} taken")
        filled = self.positional[:count]
        for name in keywords:
            if name in self.keywords:
                if name in filled:
                    raise PayloadRefused("given twice, by position and by name", parameter=name)
            elif not isinstance(name, str):
                raise PayloadRefused("has a keyword that is not text")
            elif self.extra is None:
                raise PayloadRefused("unknown", parameter=name)
        for name in self.required:
            if name not in filled and not (name in keywords and name in self.keywords):
                raise PayloadRefused("missing", parameter=name)

    def names_taken(self, count: int, keywords: Collection[str]) -> tuple[str, ...]:
        """Refuse as `check` does, else say as `names_of` does; for calls by position alone it is found out once."""
        if not keywords and (names := self._by_position.get(count)) is not None:
            return names
        self.check(count, keywords)
        names = self.names_of(count)
        if not keywords and count <= len(self.positional):
            self._by_position[count] = names
        return names

    def names_of(self, count: int) -> tuple[str, ...]:
        """The parameter that takes each of so many positional arguments."""
        return self.positional[:count] + (self.rest or "",) * (count - len(self.positional))

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The same arguments, with all that can be given by name given so."""
        pairs = list(zip(self.names_of(len(args)), args, strict=True))
        by_name = {name: value for name, value in pairs if name in self.keywords}
        return [value for name, value in pairs if name not in self.keywords], {**by_name, **kwargs}

    def name_of(self, keyword: str) -> str:
        """The parameter that takes this keyword."""
        return keyword if keyword in self.keywords else self.extra or ""


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind in (*_BY_POSITION, inspect.Parameter.KEYWORD_ONLY)
