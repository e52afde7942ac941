"""Errors in settings name the key, the source and the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from horsies.config import KEYS, load_settings
from horsies.config.keys import ENTRY_SECTION
from horsies.errors import ConfigurationError, ErrorCode, MultipleValidationErrors, SourceLocation


def load_error(folder: Path, text: str = "", **environ: str) -> ConfigurationError:
    (folder / "horsies.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_settings(environ=environ, cwd=folder)
    return caught.value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[recovery]\ncheck_intervall_ms = 5",
            "recovery.check_intervall_ms: unknown key, did you mean check_interval_ms?",
        ),
        ("[recovry]\na = 1\nb = 2", "recovry: unknown key, did you mean recovery?"),
        ("[queues.mail]\npriorty = 1", "queues.mail.priorty: unknown key, did you mean priority?"),
        ("[queues.log]\npriorty = 1", "queues.log.priorty: unknown key, did you mean priority?"),
        ("[tui]\nthem = 'x'", "tui.them: unknown key, did you mean theme?"),
        ("recovery = 5", "recovery: must be a table: [recovery]"),
    ],
)
def test_unknown_key_suggests_the_closest_one(tmp_path: Path, text: str, message: str) -> None:
    error = load_error(tmp_path, text)
    assert error.message == f"{tmp_path / 'horsies.toml'}: {message}"
    assert error.code is ErrorCode.CONFIG_UNKNOWN_KEY


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[retention]\nheartbeat_retention_hours = 5", "recovery.heartbeat_retention_hours"),
        ("[payload]\nwarn_bytes = 5", "app.payload_warn_bytes"),
        ("[worker]\nlocator = 'a:b'", "app.locator"),
        ("[worker]\ndatabase_url = 'x'", "broker.database_url"),
        ("[app]\nprocesses = 5", "worker.processes"),
        ("[app]\nexception_mapper = {}", "AppConfig(exception_mapper=…) in code"),
        ("database_url = 'x'", "broker.database_url"),
        ("[schedule]\nschedules = []", "[[schedule.entries]]"),
    ],
)
def test_misplaced_key_suggests_the_right_section(tmp_path: Path, text: str, place: str) -> None:
    assert load_error(tmp_path, text).help_text == f"use {place}"


def test_section_below_another_section_gives_a_hint(tmp_path: Path) -> None:
    error = load_error(tmp_path, "[app]\nlocator = 'a:b'\nbroker.database_url = 'embedded:'")
    assert error.message == f"{tmp_path / 'horsies.toml'}: app.broker: unknown key"
    assert error.help_text == "broker is a section: move the line above [app], or into [broker]"


def test_queue_needs_its_own_table(tmp_path: Path) -> None:
    assert "[queues.NAME]" in load_error(tmp_path, "[queues]\npriority = 5").message


def test_invalid_value_names_file_and_line(tmp_path: Path) -> None:
    error = load_error(tmp_path, "[app]\n\n[recovery]\n# often\ncheck_interval_ms = 5\n")
    assert error.location == SourceLocation(file=str(tmp_path / "horsies.toml"), line=5)
    assert "recovery.check_interval_ms: must be a whole number from 1000 to 600000, got 5" in error.message


@pytest.mark.parametrize("key", [key.path for key in KEYS.values() if key.section != ENTRY_SECTION])
def test_invalid_values_have_a_code_and_a_hint(tmp_path: Path, key: str) -> None:
    section, _, name = key.rpartition(".")
    error = load_error(tmp_path, f"[{section}]\n{name} = 2024-01-01\n")
    assert error.location == SourceLocation(file=str(tmp_path / "horsies.toml"), line=2)
    assert error.code is not None
    assert error.help_text


def test_hint_says_what_the_setting_means(tmp_path: Path) -> None:
    error = load_error(tmp_path, "[recovery]\nmax_crashes = 0\nworker_heartbeat_interval_ms = 5\n")
    assert [fault.help_text for fault in error.faults] == [
        "crashes after which a task fails with POISON_TASK; default: 10",
        "milliseconds between worker heartbeats; default: the shorter of the two above",
    ]


@pytest.mark.parametrize("header", ['[queues."bad name"]', "[queues.'bad name']", '["queues" . "bad name"]'])
def test_invalid_queue_names_its_table_and_line(tmp_path: Path, header: str) -> None:
    error = load_error(tmp_path, f"[app]\n{header}\n")
    assert 'horsies.toml: queues."bad name": must be a name of 1 to 100 letters' in error.message
    assert error.location == SourceLocation(file=str(tmp_path / "horsies.toml"), line=2)


@pytest.mark.parametrize(
    "pattern", ["pattern = { type = 'daly', time = '25:00' }", "[schedule.entries.pattern]\ntype = 'daly'"]
)
def test_invalid_pattern_names_its_schedule_entry(tmp_path: Path, pattern: str) -> None:
    entry = "[[schedule.entries]]\ntask_name = 't'\nname = "
    right = "pattern = { type = 'hourly', minute = 5 }\n"
    error = load_error(tmp_path, f"{entry}'a'\n{right}{entry}'b'\n{pattern}\n{entry}'c'\n{right}")
    assert "schedule.entries[1].pattern: pattern.type must be one of" in error.message
    assert error.location == SourceLocation(file=str(tmp_path / "horsies.toml"), line=8)


def test_errors_use_names_of_the_file(tmp_path: Path) -> None:
    queue = "[queues.mail]\npriority = 0\n"
    entry = "[[schedule.entries]]\nname = 'a'\ntask_name = 't'\n"
    text = f"[app]\npayload_warn_bytes = 0\n{queue}{entry}"
    error = load_error(tmp_path, text)
    assert "app.payload_warn_bytes: must" in str(error)
    assert "queues.mail.priority: must" in str(error)
    assert "schedule.entries[0].pattern: is required" in str(error)


def test_errors_of_all_sources_are_raised_together(tmp_path: Path) -> None:
    text = "[broker]\npool_size = 0\n[log]\nlevel = 'LOUD'\n[recovery]\nrunning_stale_threshold_ms = 30000\nfoo = 1\n"
    error = load_error(tmp_path, text, HORSIES_WORKER__PROCESSES="0", HORSIES_TUI__THEM="x")
    assert isinstance(error, MultipleValidationErrors)
    assert len(error.report.errors) == 6
    assert [word for word in ("HRS-213", "HRS-204", "HRS-217", "HRS-218") if word not in str(error)] == []


def test_error_names_the_environment_variable(tmp_path: Path) -> None:
    error = load_error(tmp_path, HORSIES_WORKER__PROCESSES="many")
    assert error.message.startswith("HORSIES_WORKER__PROCESSES: worker.processes: must be a whole number")


def test_variable_with_one_underscore_names_the_right_one(tmp_path: Path) -> None:
    error = load_error(tmp_path, HORSIES_WORKER_GRACE_S="1", HORSIES_WORKER_LIGHTS="1", HORSIES_CONFIG_SERVER="x")
    assert error.message == "HORSIES_WORKER_GRACE_S: needs two underscores after the section"
    assert "write HORSIES_WORKER__GRACE_S" in str(error)


def test_syntax_error_names_line_and_column(tmp_path: Path) -> None:
    error = load_error(tmp_path, "[app]\nlocator = \n")
    assert f"{tmp_path / 'horsies.toml'}:2:11: not valid TOML" in error.message
    assert error.location == SourceLocation(file=str(tmp_path / "horsies.toml"), line=2, column=11)


def test_deeply_nested_file_raises(tmp_path: Path) -> None:
    error = load_error(tmp_path, f"x = {'[' * 5_000}{']' * 5_000}\n")
    assert error.message == f"{tmp_path / 'horsies.toml'}: not valid TOML: nested too deeply"


def test_syntax_error_does_not_quote_a_password(tmp_path: Path) -> None:
    assert "hunter2" not in str(load_error(tmp_path, '[broker]\ndatabase_url = "postgresql://u:hunter2@h/db\n'))


def test_invalid_url_error_hides_the_password(tmp_path: Path) -> None:
    error = load_error(tmp_path, '[broker]\ndatabase_url = "mysql://u:hunter2@h/db"\n')
    assert error.code is ErrorCode.BROKER_INVALID_URL
    assert "hunter2" not in str(error)
    assert "hunter2" not in str(load_error(tmp_path, DATABASE_URL="mysql://u:hunter2@h/db"))


def test_missing_file_suggests_init(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file") as caught:
        load_settings("missing.toml", environ={}, cwd=tmp_path)
    assert caught.value.code is ErrorCode.CLI_INVALID_ARGS
    assert "horsies init" in (caught.value.help_text or "")


def test_folder_instead_of_a_file_raises(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is a folder"):
        load_settings(tmp_path, environ={})


def test_file_in_another_encoding_raises(tmp_path: Path) -> None:
    (tmp_path / "horsies.toml").write_bytes("[app]\nlocator = 'ü'".encode("latin-1"))
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        load_settings(environ={}, cwd=tmp_path)


def test_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "horsies.toml").write_text("[worker]\nprocesses = 3", encoding="utf-8-sig")
    assert load_settings(environ={}, cwd=tmp_path).worker.processes == 3


def test_unreadable_file_raises(tmp_path: Path) -> None:
    loop = tmp_path / "loop.toml"
    loop.symlink_to(loop)
    with pytest.raises(ConfigurationError, match="cannot read") as caught:
        load_settings(loop, environ={})
    assert caught.value.code is ErrorCode.CLI_INVALID_ARGS
    assert "make it readable for this user" in (caught.value.help_text or "")


def test_folder_named_like_the_file_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "inner" / "horsies.toml").mkdir(parents=True)
    (tmp_path / "horsies.toml").write_text("", encoding="utf-8")
    assert load_settings(environ={}, cwd=tmp_path / "inner").file == tmp_path / "horsies.toml"


def test_inaccessible_folder_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "horsies.toml").write_text("", encoding="utf-8")
    assert load_settings(environ={}, cwd=tmp_path / ("x" * 300)).file == tmp_path / "horsies.toml"


def test_deleted_working_directory_has_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert load_settings(environ={}).file is None
