"""How horsies reaches PostgreSQL."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, Strict

from horsies.errors import ErrorCode
from horsies.model.settings.base import Settings
from horsies.model.settings.fault import Fault
from horsies.model.settings.ranges import Seconds, at_least
from horsies.model.settings.url import DatabaseUrl
from horsies.model.settings.wording import Says

if TYPE_CHECKING:
    from collections.abc import Iterator

_POOL = ErrorCode.CONFIG_INVALID_BROKER_POOL
_KEEPALIVE = ErrorCode.CONFIG_INVALID_KEEPALIVE

PoolSize = Annotated[int, at_least(1), _POOL]
PoolExtra = Annotated[int, at_least(0), _POOL]
PoolSeconds = Annotated[Seconds, Field(gt=0), Says("a number of seconds above 0"), _POOL]
Keepalive = Annotated[int, at_least(0), _KEEPALIVE]

with warnings.catch_warnings():
    # BaseModel still has a deprecated method of this name, and pydantic warns of every field that hides it.
    warnings.simplefilter("ignore", UserWarning)

    class _SchemaConfig(Settings):
        schema: Annotated[  # pyright: ignore[reportIncompatibleMethodOverride]
            str,
            Field(strict=True, pattern=r"\A(?i:[a-z_][a-z0-9_$]{0,62})\z"),
            Says("an identifier of PostgreSQL: a letter or underscore, then letters, digits, underscores or $"),
        ] = "public"


class PostgresConfig(_SchemaConfig):
    """The server's URL, the pools for each role, and how a dead connection is noticed."""

    fault_code: ClassVar[ErrorCode | None] = ErrorCode.BROKER_INVALID_URL

    database_url: DatabaseUrl = DatabaseUrl.parse("embedded")
    session_database_url: DatabaseUrl | None = None
    pgbouncer_transaction_mode: Annotated[bool, Strict()] = False
    auto_migrate: Annotated[bool, Strict()] = True
    pool_size: PoolSize = 5
    max_overflow: PoolExtra = 10
    pool_timeout: PoolSeconds = 30
    pool_recycle: PoolSeconds = 1_800
    pool_pre_ping: Annotated[bool, Strict()] = True
    echo: Annotated[bool, Strict()] = False
    worker_pool_size: PoolSize = 3
    worker_max_overflow: PoolExtra = 2
    worker_child_pool_min_size: PoolExtra = 0
    worker_child_pool_max_size: PoolSize = 2
    tcp_keepalives: Annotated[bool, Strict(), _KEEPALIVE] = True
    tcp_keepalives_idle: Keepalive = 30
    tcp_keepalives_interval: Keepalive = 10
    tcp_keepalives_count: Keepalive = 3
    tcp_user_timeout_ms: Keepalive = 30_000

    if TYPE_CHECKING:
        # URLs come in as text; a type checker would otherwise ask for the type they are kept in.
        def __init__(
            self,
            *,
            database_url: str | DatabaseUrl = "embedded",
            session_database_url: str | DatabaseUrl | None = None,
            **others: Any,
        ) -> None: ...

    def contradictions(self) -> Iterator[Fault]:
        yield from self._unusable_session_urls()
        yield from self._keepalives_switched_on_without_a_value()
        if self.worker_child_pool_min_size > self.worker_child_pool_max_size:
            text = f"must not be more than worker_child_pool_max_size ({self.worker_child_pool_max_size})"
            yield Fault.of("worker_child_pool_min_size", "worker_child_pool_max_size", text=text, code=_POOL)

    def _unusable_session_urls(self) -> Iterator[Fault]:
        session = self.session_database_url
        if session is not None and session.is_embedded:
            yield Fault.of("session_database_url", text="must be the URL of a server, not the embedded one")
        elif session is not None and self.database_url.is_embedded:
            text = "must not be given while database_url is the embedded server"
            hint = "statements and migrations would go to two servers: set database_url to a server as well"
            yield Fault.of("session_database_url", "database_url", text=text, hint=hint)
        if not self.pgbouncer_transaction_mode:
            return
        hint = "LISTEN, migrations and advisory locks need a connection that does not go through the pooler"
        if session is None:
            text = "must be given with pgbouncer_transaction_mode"
            yield Fault.of("session_database_url", "pgbouncer_transaction_mode", text=text, hint=hint)
        elif session == self.database_url:
            text = "must differ from database_url with pgbouncer_transaction_mode"
            involved = ("session_database_url", "database_url", "pgbouncer_transaction_mode")
            yield Fault.of(*involved, text=text, hint=hint)

    def _keepalives_switched_on_without_a_value(self) -> Iterator[Fault]:
        if not self.tcp_keepalives:
            return
        for name in ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count"):
            if getattr(self, name) < 1:
                text = "must be at least 1 while tcp_keepalives is on, got 0"
                yield Fault.of(name, "tcp_keepalives", text=text, code=_KEEPALIVE)
