"""Values in environment variables and options, and how `config show` describes settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from horsies.config import describe_settings, load_settings
from horsies.errors import ConfigurationError


def value_of(folder: Path, key: str, **overrides: Any) -> Any:
    arguments: dict[str, Any] = {"environ": {}, "cwd": folder, **overrides}
    loaded = load_settings(**arguments)
    return next(row.value for row in describe_settings(loaded) if row.key == key)


@pytest.mark.parametrize(
    ("variable", "text", "key", "value"),
    [
        ("HORSIES_WORKER__PROCESSES", "3", "worker.processes", 3),
        ("HORSIES_WORKER__GRACE_S", "1.5", "worker.grace_s", 1.5),
        ("HORSIES_WORKER__GRACE_S", "none", "worker.grace_s", None),
        ("HORSIES_WORKER__QUEUES", '["a", "b"]', "worker.queues", ["a", "b"]),
        ("HORSIES_RECOVERY__HEARTBEAT_RETENTION_HOURS", "-1", "recovery.heartbeat_retention_hours", None),
        ("HORSIES_RECOVERY__RESILIENT_FLAGS", "[]", "recovery.resilient_flags", []),
        ("HORSIES_RECOVERY__OUTAGE_GRACE", "false", "recovery.outage_grace", False),
        ("HORSIES_RECOVERY__OUTAGE_GRACE", "0", "recovery.outage_grace", False),
        ("HORSIES_BROKER__ECHO", "Yes", "broker.echo", True),
        ("HORSIES_BROKER__SCHEMA", "_1", "broker.schema", "_1"),
        ("HORSIES_TUI__ENV", "5", "tui.env", "5"),
        ("HORSIES_TUI__ENV", "none", "tui.env", "none"),
        ("HORSIES_TUI__FILTERS", '{"smtp": "queue:mail"}', "tui.filters", {"smtp": "queue:mail"}),
        ("HORSIES_QUEUES__MAIL__PRIORITY", "7", "queues.mail.priority", 7),
        ("HORSIES_APP__QUEUE_MODE", "default", "app.queue_mode", "default"),
        ("HORSIES_LOG__LEVEL", "debug", "log.level", "DEBUG"),
    ],
)
def test_variables_are_parsed_by_type(tmp_path: Path, variable: str, text: str, key: str, value: object) -> None:
    assert value_of(tmp_path, key, environ={variable: text}) == value


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("HORSIES_WORKER__PROCESSES", "three"),
        ("HORSIES_WORKER__QUEUES", "a,b"),
        ("HORSIES_BROKER__ECHO", "maybe"),
        ("HORSIES_WORKER__PROCESSES", "none"),
        ("HORSIES_LOG__LEVL", "x"),
        ("HORSIES_NOTHING__LIKE__THIS", "x"),
    ],
)
def test_invalid_variables_are_named_in_errors(tmp_path: Path, variable: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=variable):
        load_settings(environ={variable: text}, cwd=tmp_path)


@pytest.mark.parametrize(
    "variable", ["HORSIES_SUPPRESS_SENDS", "HORSIES_PG_BINDIR", "HORSIES_ACTOR", "HORSIES_CHILD_PROCESS", "NO_COLOR"]
)
def test_other_variables_are_ignored(tmp_path: Path, variable: str) -> None:
    load_settings(environ={variable: "x"}, cwd=tmp_path)


@pytest.mark.parametrize("name", ["mail-out", "Mail.Out", "MAIL_OUT"])
def test_variable_matches_queue_names_with_special_characters(tmp_path: Path, name: str) -> None:
    (tmp_path / "horsies.toml").write_text(f'[queues."{name}"]\npriority = 2\n', encoding="utf-8")
    environ = {"HORSIES_QUEUES__MAIL_OUT__PRIORITY": "9"}
    assert value_of(tmp_path, f"queues.{name}.priority", environ=environ) == 9


@pytest.mark.parametrize("written", ['"none"', "-1"])
@pytest.mark.parametrize(
    "key",
    [
        "app.cluster_wide_cap",
        "app.payload_warn_bytes",
        "broker.session_database_url",
        "queues.mail.max_concurrency",
        "recovery.terminal_record_retention_hours",
        "retention.audit_retention_hours",
        "worker.grace_s",
    ],
)
def test_none_is_written_as_none_or_minus_one(tmp_path: Path, key: str, written: str) -> None:
    section, _, name = key.rpartition(".")
    (tmp_path / "horsies.toml").write_text(f"[{section}]\n{name} = {written}\n", encoding="utf-8")
    assert value_of(tmp_path, key) is None


def test_options_may_be_strings(tmp_path: Path) -> None:
    assert value_of(tmp_path, "worker.grace_s", options={"worker.grace_s": "20"}) == 20


def test_passwords_are_redacted_in_descriptions(tmp_path: Path) -> None:
    text = (
        '[broker]\ndatabase_url = "postgresql://u:hunter2@h/db"\n[[schedule.entries]]\nname = "a"\ntask_name = "t"\n'
        'pattern = { type = "hourly", minute = 5 }\nkwargs = { api_token = "hunter2", n = 1 }\n'
    )
    (tmp_path / "horsies.toml").write_text(text, encoding="utf-8")
    loaded = load_settings(environ={}, cwd=tmp_path)
    assert "hunter2" not in repr(describe_settings(loaded))
    assert "hunter2" not in repr(loaded.app.broker)
    entries = next(row.value for row in describe_settings(loaded) if row.key == "schedule.entries")
    assert entries[0]["kwargs"] == {"api_token": "***", "n": 1}


def test_mask_patterns_may_have_inline_flags(tmp_path: Path) -> None:
    text = '[tui]\nmask_keys = ["(?x) p w", "pin"]\nfilters = { PW = "a", pin = "b", c = "c" }\n'
    (tmp_path / "horsies.toml").write_text(text, encoding="utf-8")
    assert value_of(tmp_path, "tui.filters") == {"PW": "***", "pin": "***", "c": "c"}


def test_descriptions_are_plain_data_for_every_toml_type(tmp_path: Path) -> None:
    text = (
        '[[schedule.entries]]\nname = "a"\ntask_name = "t"\npattern = { type = "daily", time = 02:30:00 }\n'
        "args = [2024-01-01, 2024-01-01T05:00:00Z, nan, -inf, 1.5, { at = 03:00:00 }]\n"
    )
    (tmp_path / "horsies.toml").write_text(text, encoding="utf-8")
    [entry] = value_of(tmp_path, "schedule.entries")
    assert entry["pattern"] == {"type": "daily", "time": "02:30:00"}
    assert entry["args"] == ["2024-01-01", "2024-01-01T05:00:00+00:00", "nan", "-inf", 1.5, {"at": "03:00:00"}]


def test_descriptions_follow_the_order_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "horsies.toml").write_text("[queues.mail]\n[queues.big]\n", encoding="utf-8")
    keys = [row.key for row in describe_settings(load_settings(environ={}, cwd=tmp_path))]
    assert [key for key in keys if key.startswith(("queues.", "schedule."))] == [
        "queues.mail.priority",
        "queues.mail.max_concurrency",
        "queues.big.priority",
        "queues.big.max_concurrency",
        "schedule.enabled",
        "schedule.check_interval_seconds",
        "schedule.entries",
    ]
    assert keys.index("schedule.entries") < keys.index("tui.read_only")


def test_descriptions_name_the_line_of_a_value(tmp_path: Path) -> None:
    file = tmp_path / "horsies.toml"
    file.write_text("[worker]\nprocesses = 3\n", encoding="utf-8")
    row = next(
        row for row in describe_settings(load_settings(environ={}, cwd=tmp_path)) if row.key == "worker.processes"
    )
    assert (row.value, str(row.origin)) == (3, f"{file}:2")
