"""Database URLs and connection settings."""

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self
from urllib.parse import quote, unquote

from pydantic import Field, GetCoreSchemaHandler, StrictBool, StrictInt, StrictStr
from pydantic_core import core_schema

from horsies.errors import ConfigurationError, ErrorCode
from horsies.model.settings.base import Fault, RuleText, Seconds, Settings

# Database URLs

_SCHEMES = ("postgresql", "postgres", "postgresql+psycopg", "postgresql+asyncpg")
_CHOICES = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "target_session_attrs": ("any", "primary", "standby", "read-write", "read-only", "prefer-standby"),
}
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:]*)(?::(\d{1,5}))?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_ESCAPE_HINT = "in a user name or password, escape / as %2F, : as %3A, @ as %40, # as %23, ? as %3F"


@dataclass(frozen=True, slots=True, repr=False)
class DatabaseUrl:
    """A normalised URL of a PostgreSQL server or of the embedded server.

    `str()`, `repr()` and JSON show the masked URL; only `reveal()` returns the password.
    """

    _text: str
    project: Path | None = None
    """The project whose own embedded database this is; None if the URL names a folder or a server."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a URL; raises HRS-203 if it is invalid. Messages never quote the text, which may contain a password."""
        text = text.strip()
        if text in ("", "embedded"):
            return cls("embedded")
        scheme, separator, rest = text.partition("://")
        if separator and scheme.lower() == "embedded":
            return cls(_check_embedded_url(rest))
        if not separator or scheme.lower() not in _SCHEMES:
            raise _invalid("the database URL must start with postgresql:// or be embedded", hint=_scheme_hint(scheme))
        _check_server_url(rest)
        return cls(f"postgresql://{rest}")

    @property
    def is_embedded(self) -> bool:
        return self._text.startswith("embedded")

    @property
    def embedded_folder(self) -> Path | None:
        """The folder of `embedded:///folder`; None if it depends on the project, and for other servers."""
        _, separator, folder = self._text.partition("embedded://")
        return Path(unquote(folder, errors="surrogateescape")) if separator else None

    def in_project(self, project: Path, folder: Path) -> Self:
        """Return the URL of the project's own database in `folder`, if this is `embedded` without a folder."""
        is_default = self.is_embedded and self.embedded_folder is None
        path = quote(str(folder), errors="surrogateescape")
        return type(self)(f"embedded://{path}", project) if is_default else self

    @property
    def masked(self) -> str:
        """The URL with all passwords replaced by `***`."""
        if self.is_embedded:
            return self._text
        head, question_mark, query = self._text.removeprefix("postgresql://").partition("?")
        authority, slash, database = head.partition("/")
        userinfo, at, hosts = authority.rpartition("@")
        user, colon, _ = userinfo.partition(":")
        secret = "***" if colon else ""
        pairs = [pair.partition("=") for pair in query.split("&")]
        masked_query = "&".join(
            # libpq also takes secrets as parameters: password, sslpassword, and any setting in options.
            f"{name}=***" if re.search("password|options", unquote(name).lower()) else name + equals + value
            for name, equals, value in pairs
        )
        return f"postgresql://{user}{colon}{secret}{at}{hosts}{slash}{database}{question_mark}{masked_query}"

    def reveal(self) -> str:
        """The URL including its password, for the driver."""
        return self._text

    def __str__(self) -> str:
        return self.masked

    def __repr__(self) -> str:
        return f"DatabaseUrl({self.masked!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate, serialization=core_schema.to_string_ser_schema(when_used="json")
        )

    @classmethod
    def _validate(cls, value: object) -> Self:
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise _invalid("the database URL must be text", hint='for example "postgresql://user@host:5432/database"')
        return cls.parse(value)


def _check_embedded_url(folder: str) -> str:
    path = unquote(folder)
    if not path.startswith("/") or not path.strip("/") or _CONTROL.search(path):
        hint = "embedded:///var/lib/my-app/database, without line breaks or other control characters"
        raise _invalid("an embedded URL must contain an absolute path", hint=hint)
    return f"embedded://{folder}"


def _check_server_url(rest: str) -> None:
    """Raise for an invalid URL; `rest` is the part after `://`."""
    if re.search(r"[\x00-\x20\x7f#]", rest):
        raise _invalid("the database URL must not contain spaces, control characters or #", hint=_ESCAPE_HINT)
    head, _, query = rest.partition("?")
    authority = head.partition("/")[0]
    if "@" in rest.removeprefix(authority):
        # Otherwise a password such as 12/34 would be taken for a port and a database, and shown.
        raise _invalid("the database URL must not contain @ after the hosts", hint=_ESCAPE_HINT)
    for host in authority.rpartition("@")[2].split(","):
        found = _HOST.fullmatch(host)
        if found is None or not 1 <= int(found[2] or 1) <= 65_535:
            raise _invalid("the database URL must give hosts as host or host:port", hint=_ESCAPE_HINT)
    _check_query(query)


def _check_query(query: str) -> None:
    for pair in filter(None, query.split("&")):
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise _invalid("the database URL must give options as name=value", hint=_ESCAPE_HINT)
        choices = _CHOICES.get(unquote(name))
        if choices and unquote(value) not in choices:
            raise _invalid(f"the database URL's {unquote(name)} must be one of {', '.join(choices)}")


def _scheme_hint(scheme: str) -> str:
    known = ", ".join(f"{name}://" for name in _SCHEMES)
    # Without "://" the whole text is in `scheme` and may contain a password; show only what looks like a scheme.
    got = f"; got {scheme}" if re.fullmatch(r"[A-Za-z][A-Za-z0-9+]{0,20}", scheme) else ""
    return f"valid forms: {known}, embedded and embedded:///folder{got}"


def _invalid(message: str, *, hint: str | None = None) -> ConfigurationError:
    return ConfigurationError(message, code=ErrorCode.BROKER_INVALID_URL, hint=hint)


# Connection settings

_POOL = ErrorCode.CONFIG_INVALID_BROKER_POOL
_KEEPALIVE = ErrorCode.CONFIG_INVALID_KEEPALIVE
_URL = RuleText("a PostgreSQL URL, embedded or embedded:///folder")

PoolSize = Annotated[StrictInt, Field(ge=1), _POOL]
PoolExtra = Annotated[StrictInt, Field(ge=0), _POOL]
PoolSeconds = Annotated[Seconds, Field(gt=0), _POOL]
Keepalive = Annotated[StrictInt, Field(ge=0), _KEEPALIVE]
Identifier = Annotated[
    StrictStr,
    Field(pattern=r"\A(?i:[a-z_][a-z0-9_$]{0,62})\z"),
    RuleText("a PostgreSQL identifier: a letter or underscore, then letters, digits, underscores or $"),
]

with warnings.catch_warnings():
    # BaseModel has a deprecated method `schema`; pydantic warns about a field that hides it.
    warnings.simplefilter("ignore", UserWarning)

    class _ServerConfig(Settings):
        fault_code = ErrorCode.BROKER_INVALID_URL

        database_url: Annotated[DatabaseUrl, _URL] = Field(
            default=DatabaseUrl.parse("embedded"),
            examples=["postgresql://user:password@localhost:5432/my_database"],
            description="PostgreSQL URL; default: DATABASE_URL, else the embedded server of this project",
        )
        session_database_url: Annotated[DatabaseUrl | None, RuleText("a PostgreSQL URL")] = Field(
            default=None,
            examples=["postgresql://user:password@primary.internal:5432/my_database"],
            description="direct URL for LISTEN, migrations and locks if database_url is a pooler; default: none",
        )
        pgbouncer_transaction_mode: StrictBool = Field(
            default=False, description="set to true if database_url is a PgBouncer in transaction mode"
        )
        schema: Identifier = Field(  # pyright: ignore[reportIncompatibleMethodOverride]
            default="public", description="database schema of the tables"
        )


class PostgresConfig(_ServerConfig):
    """Database URL, connection pools and TCP keepalives."""

    auto_migrate: StrictBool = Field(
        default=True, description='migrate the schema when a worker starts; if false, run "horsies db migrate"'
    )
    pool_size: PoolSize = Field(default=5, description="connections a producer keeps open")
    max_overflow: PoolExtra = Field(default=10, description="connections a producer may open in addition to pool_size")
    pool_timeout: PoolSeconds = Field(default=30, description="seconds to wait for a free connection")
    pool_recycle: PoolSeconds = Field(default=1_800, description="seconds after which an idle connection is replaced")
    pool_pre_ping: StrictBool = Field(
        default=True, description="check connections that were idle for 30 s before using them"
    )
    echo: StrictBool = Field(default=False, description="log SQL statements at level DEBUG")
    worker_pool_size: PoolSize = Field(default=3, description="connections a worker's parent process keeps open")
    worker_max_overflow: PoolExtra = Field(
        default=2, description="connections it may open in addition to worker_pool_size"
    )
    worker_child_pool_min_size: PoolExtra = Field(
        default=0, description="connections each child process keeps open, for tasks that send tasks"
    )
    worker_child_pool_max_size: PoolSize = Field(default=2, description="most connections of each child process")
    tcp_keepalives: Annotated[StrictBool, _KEEPALIVE] = Field(
        default=True, description="detect dead connections with TCP keepalives"
    )
    tcp_keepalives_idle: Keepalive = Field(default=30, description="idle seconds before the first keepalive")
    tcp_keepalives_interval: Keepalive = Field(default=10, description="seconds between keepalives")
    tcp_keepalives_count: Keepalive = Field(
        default=3, description="unanswered keepalives after which a connection is dead"
    )
    tcp_user_timeout_ms: Keepalive = Field(
        default=30_000, description="milliseconds to wait for an acknowledgement; 0 uses the system default"
    )

    if TYPE_CHECKING:
        # URLs may be given as text; type checkers would otherwise require DatabaseUrl.
        def __init__(
            self,
            *,
            database_url: str | DatabaseUrl = "embedded",
            session_database_url: str | DatabaseUrl | None = None,
            **others: Any,
        ) -> None: ...

    def contradictions(self) -> Iterator[Fault]:
        yield from self._check_session_url()
        for name in ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count"):
            # Linux rejects 0 for these socket options.
            if self.tcp_keepalives and getattr(self, name) < 1:
                text = "must be at least 1 while tcp_keepalives is on, got 0"
                yield Fault.between(name, "tcp_keepalives", text=text, code=_KEEPALIVE)
        if self.worker_child_pool_min_size > self.worker_child_pool_max_size:
            text = f"must not be more than worker_child_pool_max_size ({self.worker_child_pool_max_size})"
            yield Fault.between("worker_child_pool_min_size", "worker_child_pool_max_size", text=text, code=_POOL)

    def _check_session_url(self) -> Iterator[Fault]:
        session = self.session_database_url
        if session is not None and session.is_embedded:
            yield Fault.between("session_database_url", text="must be a server URL, not embedded")
        elif session is not None and self.database_url.is_embedded:
            text = "must not be set if database_url is embedded"
            hint = "both URLs must point to the same server: set database_url too"
            yield Fault.between("session_database_url", "database_url", text=text, hint=hint)
        if not self.pgbouncer_transaction_mode:
            return
        hint = "LISTEN, migrations and advisory locks need a connection that bypasses the pooler"
        if session is None:
            text = "is required with pgbouncer_transaction_mode"
            yield Fault.between("session_database_url", "pgbouncer_transaction_mode", text=text, hint=hint)
        elif session == self.database_url:
            text = "must differ from database_url with pgbouncer_transaction_mode"
            involved = ("session_database_url", "database_url", "pgbouncer_transaction_mode")
            yield Fault.between(*involved, text=text, hint=hint)
