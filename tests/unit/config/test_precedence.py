"""Precedence of the sources of settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horsies import CronSchedule
from horsies.config import LoadedSettings, Precedence, load_settings
from horsies.errors import ConfigurationError, ErrorCode
from horsies.model.settings import (
    AppConfig,
    CustomQueueConfig,
    PostgresConfig,
    QueueMode,
    RecoveryConfig,
    ScheduleConfig,
    TaskSchedule,
)

CHECK = ("app", "recovery", "check_interval_ms")


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def interval(ms: int) -> str:
    return f"[recovery]\ncheck_interval_ms = {ms}\n"


def loaded(folder: Path, explicit: Path | None = None, **overrides: Any) -> LoadedSettings:
    arguments: dict[str, Any] = {"environ": {}, "cwd": folder, **overrides}
    return load_settings(explicit, **arguments)


def interval_and_source(result: LoadedSettings) -> tuple[int, Precedence]:
    return result.app.recovery.check_interval_ms, result.origin_of(CHECK).precedence


CODE = AppConfig(recovery=RecoveryConfig(check_interval_ms=3_000))


def test_defaults_apply_without_any_source(tmp_path: Path) -> None:
    result = loaded(tmp_path)
    assert interval_and_source(result) == (30_000, Precedence.DEFAULT)
    assert result.app == AppConfig()
    assert result.app.broker.database_url.is_embedded
    assert result.file is None


def test_discovered_file_overrides_defaults(tmp_path: Path) -> None:
    write(tmp_path / "horsies.toml", interval(2_000))
    assert interval_and_source(loaded(tmp_path)) == (2_000, Precedence.DISCOVERED_FILE)


def test_nearest_file_in_parent_folders_is_discovered(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    write(tmp_path / "horsies.toml", interval(2_000))
    near = write(tmp_path / "a" / "horsies.toml", interval(4_000))
    assert interval_and_source(loaded(inner)) == (4_000, Precedence.DISCOVERED_FILE)
    assert loaded(inner).file == near


def test_code_overrides_a_discovered_file(tmp_path: Path) -> None:
    write(tmp_path / "horsies.toml", interval(2_000) + "max_crashes = 4\n")
    result = loaded(tmp_path, app_config=CODE)
    assert interval_and_source(result) == (3_000, Precedence.CODE)
    assert result.app.recovery.max_crashes == 4
    assert result.overridden == ()


def test_explicit_default_in_code_counts_as_code(tmp_path: Path) -> None:
    write(tmp_path / "horsies.toml", interval(2_000))
    code = AppConfig(recovery=RecoveryConfig(check_interval_ms=30_000))
    assert interval_and_source(loaded(tmp_path, app_config=code)) == (30_000, Precedence.CODE)


def test_explicit_file_overrides_code_and_lists_overridden_keys(tmp_path: Path) -> None:
    explicit = write(tmp_path / "other.toml", interval(4_000))
    result = loaded(tmp_path, explicit, app_config=CODE)
    assert interval_and_source(result) == (4_000, Precedence.EXPLICIT_FILE)
    assert result.overridden == ("recovery.check_interval_ms",)


def test_explicit_file_prevents_discovery(tmp_path: Path) -> None:
    write(tmp_path / "horsies.toml", interval(2_000))
    explicit = write(tmp_path / "other.toml", "")
    assert interval_and_source(loaded(tmp_path, explicit)) == (30_000, Precedence.DEFAULT)


def test_environment_may_name_the_file(tmp_path: Path) -> None:
    write(tmp_path / "other.toml", interval(4_000))
    result = loaded(tmp_path, environ={"HORSIES_CONFIG": "other.toml"}, app_config=CODE)
    assert interval_and_source(result) == (4_000, Precedence.EXPLICIT_FILE)


def test_environment_overrides_an_explicit_file(tmp_path: Path) -> None:
    explicit = write(tmp_path / "other.toml", interval(4_000))
    result = loaded(tmp_path, explicit, environ={"HORSIES_RECOVERY__CHECK_INTERVAL_MS": "5000"}, app_config=CODE)
    assert interval_and_source(result) == (5_000, Precedence.ENVIRONMENT)
    assert str(result.origin_of(CHECK)) == "HORSIES_RECOVERY__CHECK_INTERVAL_MS"


def test_option_overrides_everything(tmp_path: Path) -> None:
    environ = {"HORSIES_RECOVERY__CHECK_INTERVAL_MS": "5000"}
    result = loaded(tmp_path, environ=environ, options={"recovery.check_interval_ms": 6_000})
    assert interval_and_source(result) == (6_000, Precedence.OPTION)


def test_unused_option_overrides_nothing(tmp_path: Path) -> None:
    assert interval_and_source(loaded(tmp_path, options={"recovery.check_interval_ms": None})) == (
        30_000,
        Precedence.DEFAULT,
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(
    sources=st.sets(
        st.sampled_from([source for source in Precedence if source not in {Precedence.DEFAULT, Precedence.FALLBACK}])
    )
)
def test_highest_precedence_wins(tmp_path: Path, sources: set[Precedence]) -> None:
    file = write(tmp_path / "horsies.toml", "")
    explicit = file if Precedence.EXPLICIT_FILE in sources else None
    if sources & {Precedence.DISCOVERED_FILE, Precedence.EXPLICIT_FILE}:
        write(file, interval(4_000 if explicit else 2_000))
    result = loaded(
        tmp_path,
        explicit,
        app_config=CODE if Precedence.CODE in sources else None,
        environ={"HORSIES_RECOVERY__CHECK_INTERVAL_MS": "5000"} if Precedence.ENVIRONMENT in sources else {},
        options={"recovery.check_interval_ms": 6_000} if Precedence.OPTION in sources else {},
    )
    assert result.origin_of(CHECK).precedence == max(sources, default=Precedence.DEFAULT)


def test_database_url_variable_is_the_last_fallback(tmp_path: Path) -> None:
    environ = {"DATABASE_URL": "postgres://h/fallback"}
    assert loaded(tmp_path, environ=environ).app.broker.database_url.reveal() == "postgresql://h/fallback"
    code = AppConfig(broker=PostgresConfig(database_url="postgresql://h/code"))
    assert loaded(tmp_path, environ=environ, app_config=code).app.broker.database_url.reveal() == "postgresql://h/code"
    write(tmp_path / "horsies.toml", '[broker]\ndatabase_url = "postgresql://h/file"')
    assert loaded(tmp_path, environ=environ).app.broker.database_url.reveal() == "postgresql://h/file"


def test_equal_url_in_another_spelling_is_not_an_override(tmp_path: Path) -> None:
    code = AppConfig(broker=PostgresConfig(database_url="postgresql://h/db"))
    environ = {"HORSIES_BROKER__DATABASE_URL": "postgres://h/db"}
    assert loaded(tmp_path, app_config=code, environ=environ).overridden == ()


def test_queues_in_a_file_imply_custom_mode(tmp_path: Path) -> None:
    write(tmp_path / "horsies.toml", "[queues.mail]\npriority = 3\n[queues.big]\n")
    result = loaded(tmp_path)
    assert result.app.queue_mode is QueueMode.CUSTOM
    assert result.app.custom_queues == [CustomQueueConfig(name="mail", priority=3), CustomQueueConfig(name="big")]


def test_discovered_file_extends_but_adds_no_queues(tmp_path: Path) -> None:
    write(tmp_path / "horsies.toml", "[queues.mail]\npriority = 3\nmax_concurrency = 7\n[queues.big]\n")
    code = AppConfig(queue_mode=QueueMode.CUSTOM, custom_queues=[CustomQueueConfig(name="mail", priority=2)])
    queues = loaded(tmp_path, app_config=code).app.custom_queues
    assert queues == [CustomQueueConfig(name="mail", priority=2, max_concurrency=7)]


def test_explicit_file_adds_queues(tmp_path: Path) -> None:
    explicit = write(tmp_path / "other.toml", "[queues.big]\n")
    code = AppConfig(queue_mode=QueueMode.CUSTOM, custom_queues=[CustomQueueConfig(name="mail")])
    queues = loaded(tmp_path, explicit, app_config=code).app.custom_queues
    assert {queue.name for queue in queues or ()} == {"mail", "big"}


def test_settings_only_available_in_code_are_kept(tmp_path: Path) -> None:
    code = AppConfig(exception_mapper={KeyError: "NOT_THERE"}, schedule=ScheduleConfig())
    result = loaded(tmp_path, app_config=code).app
    assert result.exception_mapper == {KeyError: "NOT_THERE"}
    assert result.schedule == ScheduleConfig()


def test_unvalidated_settings_in_code_are_kept(tmp_path: Path) -> None:
    fast = RecoveryConfig.unchecked(check_interval_ms=300)
    assert loaded(tmp_path, app_config=AppConfig(recovery=fast)).app.recovery is fast


def test_contradiction_with_code_names_the_file(tmp_path: Path) -> None:
    explicit = write(tmp_path / "other.toml", "[recovery]\nrunner_heartbeat_interval_ms = 30000\n")
    code = AppConfig(recovery=RecoveryConfig(running_stale_threshold_ms=10_000, runner_heartbeat_interval_ms=5_000))
    with pytest.raises(ConfigurationError, match="running_stale_threshold_ms") as caught:
        loaded(tmp_path, explicit, app_config=code)
    assert caught.value.code is ErrorCode.CONFIG_INVALID_RECOVERY
    assert str(explicit) in caught.value.message


def test_schedules_of_file_and_code_add_up(tmp_path: Path) -> None:
    entry = '[[schedule.entries]]\nname = "a"\ntask_name = "t"\npattern = { type = "daily", time = "02:30" }\n'
    (tmp_path / "horsies.toml").write_text(entry)
    in_code = TaskSchedule(name="b", task_name="t", pattern=CronSchedule.parse("@daily"))
    config = AppConfig(schedule=ScheduleConfig(schedules=[in_code]))
    loaded = load_settings(app_config=config, environ={}, cwd=tmp_path)
    assert loaded.app.schedule is not None
    assert [(each.name, each.source) for each in loaded.app.schedule.schedules] == [("a", "toml"), ("b", "code")]
    assert loaded.overridden == ()
    twice = AppConfig(schedule=ScheduleConfig(schedules=[in_code.model_copy(update={"name": "a"})]))
    with pytest.raises(ConfigurationError, match="unique names"):
        load_settings(app_config=twice, environ={}, cwd=tmp_path)
