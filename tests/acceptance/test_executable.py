from __future__ import annotations

import re
import subprocess
import sys

import pytest
import typer

from horsies.errors import ExitCode
from horsies.version import __version__
from horsies_ops.cli.main import load_command
from horsies_ops.cli.options import COMMANDS
from tests.support.cli import Executable


def test_help_lists_all_commands_without_textual_or_asyncpg(horsies: Executable) -> None:
    answer = horsies("--help")
    assert all(f"  {name} " in answer.stdout for name in COMMANDS)
    probe = (
        "import sys\nfrom horsies_ops.cli.main import run\nrun(['--help'])\n"
        "sys.exit(not {'textual', 'asyncpg', 'pydantic'}.isdisjoint(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True).returncode == 0


def test_no_command_prints_help(horsies: Executable) -> None:
    answer = horsies()
    assert answer.code == 0
    assert answer.stdout.startswith("Usage: horsies")


def test_version_option_prints_version(horsies: Executable) -> None:
    assert horsies("--version").stdout == f"horsies {__version__}\n"


def test_help_lists_the_exit_codes(horsies: Executable) -> None:
    listed = horsies("--help").stdout.partition("Exit codes:")[2]
    assert all(re.search(rf"\b{code.value}\b", listed) for code in ExitCode)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("task", "list", "--limit", "0"), "HRS-206"),
        (("task", "list", "--database-url", "postgresql://127.0.0.1:1/db"), "DB_PING_FAILED"),
        (("config", "show", "--config", "gone.toml"), "HRS-206"),
    ],
)
def test_json_option_prints_errors_as_json(horsies: Executable, arguments: tuple[str, ...], code: str) -> None:
    answer = horsies(*arguments, "--json")
    error = answer.document["error"]
    assert answer.code != 0
    assert (error["code"], bool(error["message"]), bool(error["hint"])) == (code, True, True)
    assert error["message"] in answer.stderr


def test_json_error_lists_all_faults(horsies: Executable) -> None:
    (horsies.cwd / "horsies.toml").write_text("[worker]\nprocesses = 0\nnonsense = 1\n")
    notes = horsies("config", "show", "--json").document["error"]["notes"]
    assert [note[:14] for note in notes] == ["error[HRS-217]", "error[HRS-218]"]


@pytest.mark.parametrize("arguments", [("nope",), ("--nope",), ("db", "nope"), ("db",), ("db", "stop", "extra")])
def test_usage_error_exits_2_with_help_hint(horsies: Executable, arguments: tuple[str, ...]) -> None:
    answer = horsies(*arguments)
    assert (answer.code, answer.stdout) == (2, "")
    assert answer.stderr.startswith("error[HRS-206]: ")
    assert "--help" in answer.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_command_table_matches_command_help(name: str) -> None:
    assert load_command(name).help.splitlines()[0] == COMMANDS[name].summary


SUMMARIES = {
    "config show": "Show every setting and where it comes from.",
    "config validate": "Check the configuration and list all errors.",
    "db migrate": "Apply pending migrations.",
    "db status": "Show connection, schema version and table sizes.",
    "db url": "Print the database URL with the password masked.",
    "db start": "Start the embedded server and keep it running.",
    "db stop": "Stop the embedded server.",
    "task list": "List tasks that match the filters.",
    "task why": "Explain what a task waits for, or who runs it.",
    "task show": "Show one task with its attempts, heartbeats and events.",
    "task requeue": "Return claimed or running tasks to their queue.",
    "task retry": "Send finished tasks again as new tasks.",
    "task fail": "Mark unfinished tasks as failed.",
    "task cancel": "Cancel tasks that have not finished.",
    "task expire": "Expire tasks that have not started.",
    "task send": "Send a task by name.",
    "queue list": "List queues with their counts and limits.",
    "queue pause": "Stop claiming from a queue; running tasks continue.",
    "queue resume": "Claim from a paused queue again.",
    "workers list": "List workers and their last heartbeat.",
    "workers ping": "Ask every live worker for an answer.",
    "workflow list": "List workflow runs.",
    "workflow show": "Show one run as a tree of its nodes.",
    "workflow pause": "Pause a run; running tasks finish.",
    "workflow resume": "Resume a paused run.",
    "workflow cancel": "Cancel a run and its waiting tasks.",
    "workflow retry": "Run the failed and skipped nodes of a finished run again.",
    "schedule list": "List schedules and their next runs.",
}


@pytest.mark.parametrize("name", SUMMARIES)
def test_subcommand_has_its_documented_summary(name: str) -> None:
    group, command = name.split()
    assert load_command(group).commands[command].help.splitlines()[0] == SUMMARIES[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_and_only_its_own_options(name: str) -> None:
    command = load_command(name)
    for each in getattr(command, "commands", {name: command}).values():
        shown = each.get_help(typer.Context(each, info_name=name, terminal_width=300))
        assert "Example: " in shown
        assert "--database-url URL" not in shown
        assert not re.search(r"<[a-z]+|\{[A-Z]", shown)
        assert "horsies --help" in shown


OPTIONS = {
    "--as": "Name recorded in the audit log [default: $HORSIES_ACTOR, else user@host]",
    "--reason": "Reason recorded in the audit log.",
    "--dry-run": "Show what would change without changing it.",
    "--exit-code": "With --dry-run: exit with 3 if there is work to do.",
    "--full": "Show long values in full.",
    "--yes": "Do not ask for confirmation.",
    "--app": "App to load, for its recovery hooks and task signatures [default: app.locator]",
    "--config": "Read settings from this file [default: the nearest horsies.toml]",
    "--database-url": "Connect to this database [default: broker.database_url]",
}


def test_options_with_the_same_meaning_have_the_documented_text() -> None:
    commands = [load_command(name) for name in COMMANDS]
    found = {
        (option, parameter.help)
        for command in commands
        for each in getattr(command, "commands", {"": command}).values()
        for parameter in each.params
        for option in parameter.opts
        if option in OPTIONS
    }
    dead_mans_switch = ("--exit-code", "With --overdue: exit with 3 if there is one.")  # of `schedule list`
    assert found == {*OPTIONS.items(), dead_mans_switch}


def test_summaries_are_not_cut_on_a_narrow_terminal(horsies: Executable) -> None:
    for arguments in ((), ("task",), ("workflow",)):
        listed = horsies(*arguments, "--help", COLUMNS="80").stdout.partition("Commands:")[2]
        assert listed
        assert "..." not in listed


@pytest.mark.parametrize(
    ("words", "offered"), [("horsies d", "db"), ("horsies db st", "status"), ("horsies config ", "show")]
)
def test_completion_offers_commands_and_subcommands(horsies: Executable, words: str, offered: str) -> None:
    answer = horsies(_HORSIES_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
    assert offered in answer.stdout.split()


def test_closed_pipe_is_not_an_error(horsies: Executable) -> None:
    command = f"{sys.executable} -m horsies_ops.cli config show | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=horsies.cwd, capture_output=True, text=True)
    assert done.stderr == ""


def test_unexpected_error_shows_traceback_only_at_debug_level(horsies: Executable) -> None:
    url = "postgresql://me@127.0.0.1/db"
    quiet = horsies("db", "status", "--database-url", url, PGPORT="abc")
    assert quiet.code == 1
    assert "Traceback" not in quiet.stderr
    assert "--loglevel DEBUG" in quiet.stderr
    loud = horsies("db", "status", "--database-url", url, "--loglevel", "DEBUG", PGPORT="abc")
    assert "Traceback" in loud.stderr


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-", "2>&-", ">&- 2>&-"])
def test_unwritable_output_prints_no_traceback(horsies: Executable, redirection: str) -> None:
    command = f"{sys.executable} -m horsies_ops.cli config show {redirection}"
    done = subprocess.run(["bash", "-c", command], cwd=horsies.cwd, capture_output=True, text=True)
    assert "Traceback" not in done.stderr


def test_version_option_works_anywhere(horsies: Executable) -> None:
    assert horsies("db", "status", "--version").stdout == f"horsies {__version__}\n"


def test_no_color_applies_to_usage_errors(horsies: Executable) -> None:
    assert "\x1b" in horsies("nope", HORSIES_FORCE_COLOR="1").stderr
    assert "\x1b" not in horsies("--no-color", "nope", HORSIES_FORCE_COLOR="1").stderr


def test_mistyped_command_gets_a_suggestion(horsies: Executable) -> None:
    assert "did you mean 'config'" in horsies("confg").stderr
