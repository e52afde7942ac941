"""Log levels of commands."""

from __future__ import annotations

import logging

import pytest

from horsies.log import configure_logging
from tests.support.cli import APP, Executable, Project

TALKATIVE = f"{APP}app.logger.info('all is well')\napp.logger.warning('beware')\n"


@pytest.mark.parametrize(
    ("options", "environment", "logged"),
    [
        ((), {}, ["beware"]),
        (("--quiet",), {}, []),
        (("--loglevel", "info"), {}, ["all is well", "beware"]),
        (("--loglevel", "info", "--quiet"), {}, ["all is well", "beware"]),
        ((), {"HORSIES_LOG__LEVEL": "INFO"}, ["all is well", "beware"]),
    ],
)
def test_commands_log_warnings_despite_level_in_config_file(
    horsies: Executable, options: tuple[str, ...], environment: dict[str, str], logged: list[str]
) -> None:
    project = Project(horsies.cwd)
    project.write("main.py", TALKATIVE)
    project.write("horsies.toml", '[log]\nlevel = "INFO"\n')
    answer = horsies("check", "main:app", *options, **environment)
    assert [line for line in ("all is well", "beware") if line in answer.stderr] == logged


def test_traceback_cannot_write_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    try:
        raise ValueError("a\x1b]0;title\x07\u202eb")
    except ValueError:
        logging.getLogger("horsies.test").exception("failed")
    shown = capsys.readouterr().err
    assert r"ValueError: a\x1b]0;title\x07\u202eb" in shown
    assert "\x1b" not in shown
