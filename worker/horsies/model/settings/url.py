"""Database URLs whose password cannot be read by accident."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pydantic_core import core_schema

from horsies.errors import ConfigurationError, ErrorCode

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler

_SCHEMES = ("postgresql", "postgres", "postgresql+psycopg", "postgresql+asyncpg")
_CHOICES = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "target_session_attrs": ("any", "primary", "standby", "read-write", "read-only", "prefer-standby"),
}
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:]*)(?::(\d{1,5}))?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_ESCAPE_HINT = "inside a user name or password write / as %2F, : as %3A, @ as %40, # as %23, ? as %3F"


@dataclass(frozen=True, slots=True, repr=False)
class DatabaseUrl:
    """A normalised URL of a PostgreSQL server, or of the embedded one.

    Everything that prints shows `masked`; only `reveal()` gives the password away.
    """

    _text: str

    @classmethod
    def parse(cls, text: str) -> DatabaseUrl:
        """Accept every documented form, refuse the rest with HRS-203, and never repeat the text in a message."""
        text = text.strip()
        if text in ("", "embedded"):
            return cls("embedded")
        scheme, separator, rest = text.partition("://")
        if separator and scheme.lower() == "embedded":
            return cls(_checked_embedded(rest))
        if not separator or scheme.lower() not in _SCHEMES:
            raise _invalid("the database URL must start with postgresql:// or be embedded", hint=_other_scheme(scheme))
        _check(rest)
        return cls(f"postgresql://{rest}")

    @property
    def is_embedded(self) -> bool:
        return self._text.startswith("embedded")

    @property
    def embedded_folder(self) -> Path | None:
        """The folder named by `embedded:///folder`; None for the default one, and for other servers."""
        _, separator, folder = self._text.partition("embedded://")
        return Path(unquote(folder)) if separator else None

    @property
    def masked(self) -> str:
        """The URL with every password in it replaced by `***`."""
        if self.is_embedded:
            return self._text
        head, mark, query = self._text.removeprefix("postgresql://").partition("?")
        authority, slash, database = head.partition("/")
        userinfo, at, hosts = authority.rpartition("@")
        user, colon, _ = userinfo.partition(":")
        secret = "***" if colon else ""
        return f"postgresql://{user}{colon}{secret}{at}{hosts}{slash}{database}{mark}{_masked_query(query)}"

    def reveal(self) -> str:
        """The URL as a driver needs it, password included."""
        return self._text

    def __str__(self) -> str:
        return self.masked

    def __repr__(self) -> str:
        return f"DatabaseUrl({self.masked!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validated, serialization=core_schema.to_string_ser_schema(when_used="json")
        )

    @classmethod
    def _validated(cls, value: object) -> DatabaseUrl:
        if isinstance(value, DatabaseUrl):
            return value
        if not isinstance(value, str):
            raise _invalid("the database URL must be text", hint='for example "postgresql://user@host:5432/database"')
        return cls.parse(value)


def _checked_embedded(folder: str) -> str:
    path = unquote(folder)
    if not path.startswith("/") or not path.strip("/") or _CONTROL.search(path):
        hint = "embedded:///var/lib/my-app/database, without line breaks or other control characters"
        raise _invalid("an embedded URL must name an absolute folder", hint=hint)
    return f"embedded://{folder}"


def _check(rest: str) -> None:
    """Refuse what no driver could make sense of; `rest` is what follows `://`."""
    if re.search(r"[\x00-\x20\x7f#]", rest):
        raise _invalid("the database URL must not hold spaces, control characters or #", hint=_ESCAPE_HINT)
    head, _, query = rest.partition("?")
    authority = head.partition("/")[0]
    if "@" in rest.removeprefix(authority):
        # A password such as 12/34 would otherwise pass for a port and a database, and be printed.
        raise _invalid("the database URL must not hold @ after the hosts", hint=_ESCAPE_HINT)
    for host in authority.rpartition("@")[2].split(","):
        found = _HOST.fullmatch(host)
        if found is None or not 1 <= int(found[2] or 1) <= 65_535:
            raise _invalid("the database URL must name hosts as host or host:port", hint=_ESCAPE_HINT)
    _check_query(query)


def _check_query(query: str) -> None:
    for pair in filter(None, query.split("&")):
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise _invalid("the database URL must give its options as name=value", hint=_ESCAPE_HINT)
        choices = _CHOICES.get(unquote(name))
        if choices and unquote(value) not in choices:
            raise _invalid(f"the database URL's {unquote(name)} must be one of {', '.join(choices)}")


def _masked_query(query: str) -> str:
    pairs = [pair.partition("=") for pair in query.split("&")]
    return "&".join(
        f"{name}=***" if "password" in unquote(name).lower() else name + equals + value for name, equals, value in pairs
    )


def _other_scheme(scheme: str) -> str:
    known = ", ".join(f"{name}://" for name in _SCHEMES)
    # Without "://" the whole text came in as the scheme, and it may hold a password.
    seen = f"; {scheme} is none of them" if re.fullmatch(r"[A-Za-z][A-Za-z0-9+]{0,20}", scheme) else ""
    return f"accepted are {known}, embedded and embedded:///folder{seen}"


def _invalid(message: str, *, hint: str | None = None) -> ConfigurationError:
    return ConfigurationError(message, code=ErrorCode.BROKER_INVALID_URL, hint=hint)
