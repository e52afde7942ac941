"""Runs the recipes with the real frameworks, and checks every documented `horsies` command against the command line."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from horsies_ops.cli.main import load_command
from horsies_ops.cli.options import COMMANDS
from tests.support.cli import ROOT, Example, Executable, examples_of, write_files_of

DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/recipes/*.md")]
)


class Recipe:
    """The files of a recipe in a folder, with a migrated database."""

    def __init__(self, document: str, folder: Path, database_url: str) -> None:
        write_files_of(document, folder)
        self.folder = folder
        self.environment = {"DATABASE_URL": database_url}
        self.horsies = Executable(cwd=folder, environment=self.environment)

    def python(self, program: str) -> Any:
        """Run a program in the folder and return what it prints as JSON on its last line."""
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]) if done.stdout else None

    def work(self) -> None:
        """Run what is due in a real worker."""
        ended = self.horsies("worker", "tasks:app", "--burst", "--processes", "1")
        assert ended.code == 0, ended.stderr


WEB_CLIENTS = {
    "docs/recipes/fastapi.md": (
        "from fastapi.testclient import TestClient; from api import api; client = TestClient(api)",
        "/pictures/cat?width=80",
    ),
    "docs/recipes/flask.md": ("from web import web; client = web.test_client()", "/pictures/cat/80"),
}


@pytest.mark.parametrize("document", WEB_CLIENTS)
def test_web_recipes_send_and_read_a_task(document: str, database_url: str, tmp_path: Path) -> None:
    recipe = Recipe(document, tmp_path, database_url)
    client, path = WEB_CLIENTS[document]
    send = f"import json; {client}; task_id = json.loads(client.post({path!r}).text)['task_id']"
    read = "print(json.dumps([task_id, json.loads(client.get(f'/tasks/{task_id}').text)]))"
    task_id, answer = recipe.python(f"{send}; {read}")
    assert answer == {"done": False, "code": "WAIT_TIMEOUT"}
    recipe.work()
    _, answer = recipe.python(f"import json; {client}; task_id = {task_id!r}; {read}")
    assert answer == {"done": True, "value": "cat at 80 pixels"}


def test_django_recipe_changes_a_model_in_a_worker(database_url: str, tmp_path: Path) -> None:
    recipe = Recipe("docs/recipes/django.md", tmp_path, database_url)
    prepared = "import tasks; from django.core.management import call_command; call_command('migrate', verbosity=0)"
    recipe.python(f"{prepared}; tasks.User.objects.create_user('ada')")
    request = (
        "import tasks; from django.test import Client; print(Client().get('/accounts/ada/close').content.decode())"
    )
    answer = recipe.python(f"from django.conf import settings; import tasks; settings.ALLOWED_HOSTS = ['*']; {request}")
    assert answer == {"closing": "ada"}
    recipe.work()
    assert recipe.python("import tasks; print(int(tasks.User.objects.get(username='ada').is_active))") == 0


CAPTURE = """

import pathlib
from sentry_sdk.transport import Transport


class ToFile(Transport):
    def capture_envelope(self, envelope):
        for item in envelope.items:
            pathlib.Path("envelopes").open("a").write(json.dumps(item.payload.json) + chr(10))


import json

start = sentry_sdk.init
sentry_sdk.init = lambda **options: start(**options | {"dsn": "https://key@sentry.example/1", "transport": ToFile})
"""


def test_sentry_recipe_reports_the_exception_of_a_task(database_url: str, tmp_path: Path) -> None:
    recipe = Recipe("docs/recipes/sentry.md", tmp_path, database_url)
    with (tmp_path / "tasks.py").open("a") as module:
        module.write(CAPTURE)
    recipe.python("from tasks import charge; charge.send(0).unwrap(); charge.send(5).unwrap()")
    recipe.work()
    events = [json.loads(line) for line in (tmp_path / "envelopes").read_text().splitlines()]
    (event,) = [event for event in events if "exception" in event]
    assert event["exception"]["values"][-1]["value"] == "cannot charge 0 cents"
    assert (event["tags"]["task"], event["tags"]["attempt"]) == ("charge", 1)


def test_probe_answers_only_while_a_worker_runs_here(database_url: str, tmp_path: Path) -> None:
    recipe = Recipe("docs/recipes/kubernetes.md", tmp_path, database_url)
    write_files_of("docs/recipes/fastapi.md", tmp_path)
    probe = [sys.executable, "probe.py"]
    environment = {**os.environ, **recipe.environment}
    assert subprocess.run(probe, cwd=tmp_path, env=environment).returncode == 1
    with recipe.horsies.start("worker", "tasks:app", "--processes", "1") as worker:
        worker.wait_for_output("worker started")
        assert subprocess.run(probe, cwd=tmp_path, env=environment).returncode == 0


# Commands


def test_stop_times_of_services_cover_the_grace_of_their_worker() -> None:
    (unit,) = examples_of("docs/recipes/systemd.md", language="ini")
    service = configparser.ConfigParser(interpolation=None)
    service.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]  # systemd's keys are case-sensitive
    service.read_string(unit.text)
    (compose,) = examples_of("docs/recipes/docker.md", language="yaml")
    (pod,) = examples_of("docs/recipes/kubernetes.md", language="yaml")
    spec = yaml.safe_load(pod.text)["spec"]["template"]["spec"]
    pre_stop = int(spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    stop_times = [
        int(service["Service"]["TimeoutStopSec"]),
        int(yaml.safe_load(compose.text)["services"]["worker"]["stop_grace_period"].removesuffix("s")),
        int(spec["terminationGracePeriodSeconds"]) - pre_stop,
    ]
    assert [each for each in stop_times if each < 50 + 5 + 5] == []


def commands_in(example: Example) -> list[list[str]]:
    """Command lines of `horsies` in a shell session, a unit, a Dockerfile or YAML."""
    lists = re.findall(r'\["horsies".*?\]', example.text)
    lines = re.findall(r"^(?:\$ |ExecStart=\S*/)?(horsies .*)$", example.text, re.MULTILINE)
    words = [shlex.split(line.partition(" >")[0], comments=True) for line in lines]
    return [each[1:] for each in [*map(json.loads, lists), *words]]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documented_commands_and_options_exist(document: str) -> None:
    for example in examples_of(document):
        if example.language not in {"python", "toml", "text", "filter"}:
            for words in commands_in(example):
                parse(words)


def parse(words: list[str]) -> None:
    """Parse a command line without running it; fails for an unknown command, argument or option."""
    if words[0].startswith("-"):  # such as --help
        return
    name, *rest = ["a91f03c2" if word == "ID" else word for word in words]
    assert name in COMMANDS, words
    command = load_command(name)
    if hasattr(command, "commands"):
        assert rest[0] in command.commands, words
        command = command.commands[rest.pop(0)]
    if "--help" not in rest:
        with command.make_context(name, rest):
            pass
