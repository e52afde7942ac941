"""Valid and invalid database URLs, and masking of passwords."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.errors import ConfigurationError, ErrorCode
from horsies.model.settings import AppConfig, DatabaseUrl, PostgresConfig, ProjectConfig, WorkerConfig, WorkerSettings

SECRET = "hunter2"


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg", "postgresql+asyncpg", "POSTGRES"])
def test_schemes_are_normalized_to_postgresql(scheme: str) -> None:
    assert DatabaseUrl.parse(f"{scheme}://u:{SECRET}@h/db").reveal() == f"postgresql://u:{SECRET}@h/db"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://",
        "postgresql:///db",
        "postgresql:///db?host=/run/postgresql",
        "postgresql://%2Frun%2Fpostgresql/db",
        "postgresql://h:5432/db?sslmode=verify-full",
        "postgresql://a:1,b:2,c/db?target_session_attrs=read-write",
        "postgresql://u@[::1]:5432/db",
        "postgresql://u@[fe80::1%25eth0]/db",
        "postgresql://u:p%40ss@h/db",
    ],
)
def test_server_urls_are_kept_unchanged(url: str) -> None:
    assert DatabaseUrl.parse(url).reveal() == url
    assert not DatabaseUrl.parse(url).is_embedded


@pytest.mark.parametrize(
    "text",
    [
        "mysql://h/db",
        "h/db",
        "embedded://host/dir",
        "embedded://",
        "embedded:///",
        "postgresql://h:port/db",
        "postgresql://h:0/db",
        "postgresql://h:65536/db",
        "postgresql://[::1/db",
        "postgresql://h/d b",
        "postgresql://h/db#x",
        "postgresql://h/db?sslmode",
        "postgresql://h/db?sslmode=maybe",
        "postgresql://h/db?target_session_attrs=fast",
        "postgresql://u:pass/word@h/db",
        "postgresql://u:12/34@h/db",
        "postgresql://u:77?x=hunter2@h/db",
        "postgresql://h/db?user=a@b",
        "embedded:///srv/a%0Ab",
        "embedded:///srv/a\tb",
        "embedded:///srv/%C2%9B31m",
    ],
)
def test_invalid_urls_are_rejected(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        DatabaseUrl.parse(text)
    assert caught.value.code is ErrorCode.BROKER_INVALID_URL
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("text", ["", "  ", "embedded"])
def test_empty_url_means_the_embedded_server(text: str) -> None:
    assert DatabaseUrl.parse(text).is_embedded
    assert DatabaseUrl.parse(text).embedded_folder is None


def test_embedded_url_may_name_a_folder() -> None:
    url = DatabaseUrl.parse("embedded:///srv/my%20data")
    assert url.is_embedded
    assert url.embedded_folder == Path("/srv/my data")


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("postgresql://u:hunter2@h/db", "postgresql://u:***@h/db"),
        ("postgresql://:hunter2@h/db", "postgresql://:***@h/db"),
        ("postgresql://u:a@hunter2@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:hunter2%2F@a:1,[::1]:2/db", "postgresql://u:***@a:1,[::1]:2/db"),
        ("postgresql:///db?host=/run&password=hunter2&x=1", "postgresql:///db?host=/run&password=***&x=1"),
        ("postgresql://h/db?pass%77ord=hunter2", "postgresql://h/db?pass%77ord=***"),
        ("postgresql://h/db?PassWord=hunter2", "postgresql://h/db?PassWord=***"),
        ("postgresql://h?sslpassword=hunter2", "postgresql://h?sslpassword=***"),
        ("postgresql://h?options=-c%20my.secret%3Dhunter2", "postgresql://h?options=***"),
        ("postgresql://u@h/db", "postgresql://u@h/db"),
    ],
)
def test_passwords_are_masked(url: str, masked: str) -> None:
    parsed = DatabaseUrl.parse(url)
    assert parsed.masked == str(parsed) == f"{parsed}" == masked
    assert SECRET not in repr(parsed)


def test_printed_settings_never_show_the_password() -> None:
    broker = PostgresConfig(
        database_url=f"postgresql://u:{SECRET}@h/db", session_database_url=f"postgres://u:{SECRET}@g/d"
    )
    worker = WorkerConfig.of(AppConfig(broker=broker), WorkerSettings(), ProjectConfig())
    for shown in (broker, worker):
        texts = [repr(shown), str(shown), str(shown.model_dump()), shown.model_dump_json(), f"{shown}"]
        assert not [way for way in texts if SECRET in way]
    assert SECRET in worker.dsn.reveal()


@given(
    password=st.text(st.characters(categories=["L", "N"]), min_size=4), tail=st.sampled_from(["/#", "", "h:x/", " "])
)
def test_errors_never_contain_the_password(password: str, tail: str) -> None:
    password = f"pw-{password}"
    with pytest.raises(ConfigurationError) as caught:
        PostgresConfig(database_url=f"sqlite://user:{password}@{tail}", pool_size=0, schema=f"a:{password}")
    assert password not in str(caught.value)
    with pytest.raises(ConfigurationError) as caught:
        DatabaseUrl.parse(f"postgresql://user:{password}@[{tail}")
    assert password not in str(caught.value)


def test_source_line_with_the_password_is_not_quoted() -> None:
    with pytest.raises(ConfigurationError) as caught:
        PostgresConfig(database_url="mysql://u:hunter2@h/db")
    assert "hunter2" not in str(caught.value)
    assert str(Path(__file__)) in str(caught.value)


def test_url_can_be_pickled() -> None:
    url = DatabaseUrl.parse(f"postgresql://u:{SECRET}@h/db")
    assert pickle.loads(pickle.dumps(url)) == url  # noqa: S301


def test_settings_for_a_database_url() -> None:
    config = AppConfig.for_database_url("postgresql://me@db.internal/shop")
    assert config == AppConfig(broker=PostgresConfig(database_url="postgresql://me@db.internal/shop"))
    with pytest.raises(ConfigurationError, match="must start with postgresql://"):
        AppConfig.for_database_url("mysql://me@db.internal/shop")
