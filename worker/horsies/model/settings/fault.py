"""One thing that is wrong with a setting, before anyone knows where the setting came from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from horsies.errors import ConfigurationError, SourceLocation

if TYPE_CHECKING:
    from horsies.errors import ErrorCode

Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A broken rule: `path` is the setting to blame, `involved` every setting the rule looked at.

    Paths start at the model that was asked. Without a `code` the model's own one applies.
    """

    path: Path
    text: str
    code: ErrorCode | None = None
    hint: str | None = None
    involved: tuple[Path, ...] = ()

    @classmethod
    def of(cls, *names: str, text: str, code: ErrorCode | None = None, hint: str | None = None) -> Fault:
        """A contradiction between the named settings (dots descend); the first one is to blame."""
        paths = tuple(tuple(name.split(".")) for name in names)
        return cls(path=paths[0], text=text, code=code, hint=hint, involved=paths)

    def looks_at(self, path: Path) -> bool:
        """Whether the rule read the setting at `path`, something inside it, or the group around it."""
        return any(known[: len(path)] == path[: len(known)] for known in self.involved)

    def below(self, parent: Path) -> Fault:
        return replace(self, path=parent + self.path, involved=tuple(parent + path for path in self.involved))

    def or_code(self, code: ErrorCode | None) -> Fault:
        return self if self.code is not None else replace(self, code=code)

    def as_error(
        self, *, name: str | None = None, source: str = "", location: SourceLocation | None = None
    ) -> ConfigurationError:
        """The error a user sees; `source` says whose value it was when that was not the user's own code."""
        prefix = f"{source}: " if source else ""
        message = f"{prefix}{name or dotted(self.path)}: {self.text}"
        return ConfigurationError(message, code=self.code, hint=self.hint, location=location)


def dotted(path: Path) -> str:
    """`("custom_queues", 0, "priority")` as `custom_queues[0].priority`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")
