from __future__ import annotations

import tomllib
from pathlib import Path

from tests.support.cli import Executable

EXAMPLE = Path(__file__).parents[2] / "horsies.toml.example"


def test_init_writes_valid_file_and_does_not_overwrite(horsies: Executable) -> None:
    assert horsies("init").stdout == "horsies.toml\n"
    assert horsies("config", "validate").code == 0
    before = (horsies.cwd / "horsies.toml").read_text()
    again = horsies("init")
    assert (again.code, (horsies.cwd / "horsies.toml").read_text()) == (1, before)
    assert "hint: use --force to overwrite it" in again.stderr
    assert horsies("init", "--force").code == 0


def test_example_config_is_valid(horsies: Executable) -> None:
    (horsies.cwd / "horsies.toml").write_text(EXAMPLE.read_text())
    answer = horsies("config", "validate", "--config", "horsies.toml", "--json")
    assert answer.document == {"ok": True, "file": str(horsies.cwd / "horsies.toml"), "errors": []}
    assert tomllib.loads(EXAMPLE.read_text())["app"]["locator"] == "horsies.sample:app"


def test_config_show_prints_origins_and_masks_passwords(horsies: Executable) -> None:
    (horsies.cwd / "horsies.toml").write_text("[recovery]\ncheck_interval_ms = 5000\n")
    answer = horsies(
        "config",
        "show",
        "--json",
        HORSIES_WORKER__PROCESSES="3",
        DATABASE_URL="postgresql://me:hunter2@db/app",
    )
    rows = {row["key"]: row for row in answer.document["settings"]}
    assert rows["recovery.check_interval_ms"]["origin"] == f"{horsies.cwd}/horsies.toml:2"
    assert rows["worker.processes"] == {
        "key": "worker.processes",
        "value": 3,
        "origin": "HORSIES_WORKER__PROCESSES",
    }
    assert rows["broker.database_url"]["value"] == "postgresql://me:***@db/app"
    assert rows["recovery.max_crashes"]["origin"] == "default"
    assert "hunter2" not in answer.stdout


def test_all_config_errors_are_reported_without_traceback(horsies: Executable) -> None:
    (horsies.cwd / "bad.toml").write_text(
        '[recovery]\ncheck_intervall_ms = 5\nrunning_stale_threshold_ms = 40000\n[worker]\nprocesses = "many"\n'
    )
    answer = horsies("config", "validate", "--config", "bad.toml")
    assert (answer.code, answer.stdout) == (1, "")
    assert "error[HRS-217]" in answer.stderr
    assert "did you mean check_interval_ms?" in answer.stderr
    assert "error[HRS-204]" in answer.stderr
    assert "running_stale_threshold_ms" in answer.stderr
    assert "worker.processes" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_missing_config_file_hints_at_init(horsies: Executable) -> None:
    answer = horsies("--config", "nope.toml", "config", "show")
    assert answer.code == 1
    assert "horsies init" in answer.stderr


def test_config_show_prints_schedule_times_as_text(horsies: Executable) -> None:
    (horsies.cwd / "horsies.toml").write_text(
        '[[schedule.entries]]\nname = "a"\ntask_name = "t"\n'
        'pattern = { type = "daily", time = 02:30:00 }\nargs = [2024-01-01, nan]\n'
    )
    rows = {row["key"]: row["value"] for row in horsies("config", "show", "--json").document["settings"]}
    assert rows["schedule.entries"][0]["args"] == ["2024-01-01", "nan"]
    assert '"02:30:00"' in horsies("config", "show").stdout


def test_init_rejects_missing_folder(horsies: Executable) -> None:
    answer = horsies("init", "--path", "nodir/")
    assert (answer.code, answer.stdout) == (1, "")
    assert "no such folder: nodir" in answer.stderr
    assert not (horsies.cwd / "nodir").exists()
