"""horsies.toml.example and the file that `horsies init` writes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from horsies.config import (
    KEYS,
    Precedence,
    describe_settings,
    load_settings,
    render_toml,
    write_config_file,
)
from horsies.config.keys import ENTRY_SECTION, AllSettings
from horsies.errors import ConfigurationError, ErrorCode, ExitCode
from horsies.model.settings import CustomQueueConfig, Settings
from horsies.model.settings.patterns import Pattern
from tests.support.settings_files import EXAMPLE_FILE as EXAMPLE
from tests.support.settings_files import expected_files

ENTRY = ("app", "schedule", "schedules")
CODE_ONLY = {("app", "exception_mapper"), (*ENTRY, "workflow"), (*ENTRY, "source")}


def fields_of(model: type[Settings], prefix: tuple[str, ...]) -> set[tuple[str, ...]]:
    """Return the paths of all settings below a model."""
    found: set[tuple[str, ...]] = set()
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        groups = (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Settings))
        group = next((kind for kind in groups if not issubclass(kind, Pattern)), None)
        found |= fields_of(group, (*prefix, name)) if group else {(*prefix, name)}
    return found


def test_keys_and_settings_correspond() -> None:
    settings = fields_of(AllSettings, ()) - CODE_ONLY
    settings -= {("app", "custom_queues")}
    settings |= {("app", "custom_queues", "NAME", name) for name in CustomQueueConfig.model_fields if name != "name"}
    settings |= {("app", "schedule", "schedules")}
    assert {key.model_path for key in KEYS.values()} == settings


@pytest.mark.parametrize("path", expected_files(), ids=lambda path: path.name)
def test_files_made_from_the_settings_are_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == expected_files()[path], "run `make settings`"


def test_example_shows_every_key_with_its_comment() -> None:
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    for key in (key for path, key in KEYS.items() if path != ENTRY_SECTION):
        below = lines[lines.index(f"# {key.comment}") + 1]
        assert below.removeprefix("# ").startswith((f"{key.name} = ", f"[{key.path}]"))


def test_example_has_the_defaults_and_the_sample_app() -> None:
    environ = {"DATABASE_URL": "postgresql://h/db"}  # the default depends on the folder of the file
    loaded, bare = load_settings(EXAMPLE, environ=environ), load_settings(environ=environ, cwd=Path("/"))
    changed = {
        (row.key, row.value)
        for row, default in zip(describe_settings(loaded), describe_settings(bare), strict=True)
        if row.value != default.value
    }
    assert changed == {("app.locator", "horsies.sample:app")}


def test_example_does_not_set_the_database() -> None:
    environ = {"DATABASE_URL": "postgresql://h/db"}
    assert load_settings(EXAMPLE, environ=environ).app.broker.database_url.reveal() == "postgresql://h/db"


@pytest.mark.parametrize("write_defaults", [True, False])
def test_commented_out_examples_are_valid(tmp_path: Path, *, write_defaults: bool) -> None:
    comments = {f"# {key.comment}" for key in KEYS.values()}
    kept = [line for line in render_toml(write_defaults=write_defaults).splitlines()[3:] if line not in comments]
    text = "\n".join(line.removeprefix("# ") for line in kept).replace(
        'queue_mode = "default"', 'queue_mode = "custom"'
    )
    file = tmp_path / "horsies.toml"
    file.write_text(text, encoding="utf-8")
    loaded = load_settings(file, environ={})
    assert loaded.locator == "my_package.tasks:app"
    assert loaded.tui.filters == {"smtp": "queue:mail err:SMTP*"}


def test_init_shows_all_settings_but_sets_none(tmp_path: Path) -> None:
    file = write_config_file(tmp_path / "horsies.toml")
    assert not [
        row
        for row in describe_settings(load_settings(file, environ={}))
        if row.origin.precedence is not Precedence.DEFAULT
    ]
    shown, write_defaults = file.read_text(encoding="utf-8").splitlines(), render_toml().splitlines()
    assert [line.removeprefix("# ") for line in shown] == [line.removeprefix("# ") for line in write_defaults]


def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "horsies.toml"
    file.write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="already exists") as caught:
        write_config_file(file)
    assert caught.value.exit_code is ExitCode.FAILED
    assert "--force" in (caught.value.help_text or "")
    assert file.read_text(encoding="utf-8") == "mine"


def test_force_overwrites_and_leaves_no_draft(tmp_path: Path) -> None:
    file = tmp_path / "horsies.toml"
    file.write_text("mine", encoding="utf-8")
    assert write_config_file(file, force=True).read_text(encoding="utf-8") == render_toml(write_defaults=False)
    assert list(tmp_path.iterdir()) == [file]


def test_folder_gets_a_file_with_the_default_name(tmp_path: Path) -> None:
    assert write_config_file(tmp_path) == tmp_path / "horsies.toml"


def test_missing_folder_raises(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere/horsies\.toml: no such folder: .*/nowhere") as caught:
        write_config_file(tmp_path / "nowhere" / "horsies.toml")
    assert caught.value.code is ErrorCode.CLI_INVALID_ARGS


def test_path_with_trailing_slash_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such folder"):
        write_config_file(f"{tmp_path}/nowhere/")
    assert list(tmp_path.iterdir()) == []


def test_unwritable_path_raises_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot write: File name too long") as caught:
        write_config_file(tmp_path / ("x" * 300))
    assert caught.value.code is ErrorCode.CLI_INVALID_ARGS
    assert "--path" in (caught.value.help_text or "")


def test_force_replaces_only_regular_files(tmp_path: Path) -> None:
    link, fifo = tmp_path / "link.toml", tmp_path / "fifo.toml"
    link.symlink_to(tmp_path / "elsewhere")
    os.mkfifo(fifo)
    for target in (link, fifo):
        with pytest.raises(ConfigurationError, match="not a regular file"):
            write_config_file(target, force=True)
    assert link.is_symlink()
    assert fifo.is_fifo()


def test_only_one_concurrent_init_succeeds(tmp_path: Path) -> None:
    def init(number: int) -> bool:
        try:
            return write_config_file(tmp_path / "horsies.toml").is_file()
        except ConfigurationError:
            return False

    with ThreadPoolExecutor() as pool:
        assert sum(pool.map(init, range(8))) == 1


def test_planted_symlink_of_the_draft_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("keep me")
    (tmp_path / f".horsies.toml.{os.getpid()}").symlink_to(victim)
    write_config_file(tmp_path / "horsies.toml")
    assert victim.read_text() == "keep me"
