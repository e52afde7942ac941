"""Valid and invalid app locators."""

from __future__ import annotations

import pytest

from horsies import ConfigurationError, ErrorCode
from horsies.config import load_settings
from horsies.discover import import_app, import_app_with_tasks
from tests.support.cli import APP, Project

TWO_APPS = "from horsies import Horsies\nfirst, second = Horsies(), Horsies()\n"


def import_error(locator: str | None) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as raised:
        import_app_with_tasks(locator, load_settings())
    return raised.value


@pytest.mark.parametrize(
    "locator", ["shop.main:app", "shop.main", "shop/main.py:app", "shop/main.py", "./shop/main.py"]
)
def test_app_is_found_by_module_or_file(project: Project, locator: str) -> None:
    project.write("shop/main.py", APP)
    assert import_app_with_tasks(locator, load_settings()).list_tasks() == []


def test_file_in_the_working_directory_needs_no_path(project: Project) -> None:
    project.write("lone_app.py", APP)
    assert import_app_with_tasks("lone_app.py", load_settings()) is import_app_with_tasks(
        "lone_app:app", load_settings()
    )


def test_settings_give_the_default_locator(project: Project) -> None:
    project.write("configured.py", APP)
    project.write("horsies.toml", '[app]\nlocator = "configured:app"\n')
    assert import_app_with_tasks(None, load_settings()) is import_app_with_tasks("configured", load_settings())


@pytest.mark.parametrize("locator", ["depot_app:app", "depot_app.py:app", "./depot_app.py"])
def test_locator_of_a_discovered_file_is_relative_to_it(
    project: Project, monkeypatch: pytest.MonkeyPatch, locator: str
) -> None:
    project.write("depot_app.py", APP)
    project.write("horsies.toml", f'[app]\nlocator = "{locator}"\n')
    project.write("deep/down/other.py")
    monkeypatch.chdir(project.folder / "deep/down")
    assert import_app_with_tasks(None, load_settings()) is import_app_with_tasks(locator, load_settings())


def test_other_locators_are_relative_to_the_working_directory(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("horsies.toml", '[app]\nlocator = "elsewhere:app"\n')
    project.write("below/lower_app.py", APP)
    monkeypatch.chdir(project.folder / "below")
    import_app_with_tasks("lower_app.py", load_settings())
    monkeypatch.setenv("HORSIES_APP__LOCATOR", "./lower_app.py")
    import_app_with_tasks(None, load_settings())


def test_given_locator_overrides_the_settings(project: Project) -> None:
    project.write("wanted.py", APP)
    project.write("horsies.toml", '[app]\nlocator = "horsies.sample:app"\n')
    assert "sample.resize" not in import_app_with_tasks("wanted", load_settings()).tasks


def test_app_with_two_names_is_one_app(project: Project) -> None:
    project.write("aliased.py", f"{APP}queue = app\n")
    import_app_with_tasks("aliased", load_settings())


def test_task_modules_are_imported(project: Project) -> None:
    project.write("main.py", f"{APP}app.discover_tasks(['shop_tasks'])\n")
    project.write_task("shop_tasks.py", name="resize")
    assert import_app_with_tasks("main", load_settings()).list_tasks() == ["resize"]


def test_app_can_be_imported_without_task_modules(project: Project) -> None:
    project.write("main.py", f"{APP}app.discover_tasks(['not_there'])\n")
    assert import_app("main", load_settings()).list_tasks() == []


def test_sibling_modules_register_with_the_same_app(project: Project) -> None:
    project.write("depot/__init__.py")
    project.write("depot/main.py", f"{APP}app.discover_tasks(['depot/tasks.py'])\n")
    project.write_task("depot/tasks.py", name="count", app="depot.main")
    assert import_app_with_tasks("depot/main.py", load_settings()).list_tasks() == ["count"]


def test_sends_are_suppressed_while_importing_the_app(project: Project) -> None:
    project.write("eager.py", f"{APP}app.was_suppressed = app.are_sends_suppressed()\n")
    app = import_app_with_tasks("eager", load_settings())
    assert vars(app)["was_suppressed"]
    assert not app.are_sends_suppressed()


@pytest.mark.parametrize("locator", [None, "shop:", ":app", "shop:the app", " "])
def test_malformed_locator_gives_a_hint(project: Project, locator: str | None) -> None:
    error = import_error(locator)
    assert error.code is ErrorCode.CLI_INVALID_ARGS
    assert "package.module:app" in str(error.help_text)


@pytest.mark.parametrize("locator", ["shop.main.py", "shop.main.py:app"])
def test_dotted_name_with_py_suffix_is_ambiguous(project: Project, locator: str) -> None:
    project.write("shop/main.py", APP)
    error = import_error(locator)
    assert error.code is ErrorCode.CLI_INVALID_ARGS
    assert error.help_text == "use shop.main for the module or ./shop.main.py for the file"


@pytest.mark.parametrize("locator", ["nowhere.main:app", "nowhere", "nowhere/main.py", "nowhere.py"])
def test_missing_module_or_file_names_the_searched_folder(project: Project, locator: str) -> None:
    error = import_error(locator)
    assert error.code is ErrorCode.WORKER_INVALID_LOCATOR
    assert str(project.folder) in str(error.help_text)


def test_module_without_an_app_gives_a_hint(project: Project) -> None:
    project.write("empty_module.py")
    error = import_error("empty_module")
    assert (error.code, error.message) == (ErrorCode.WORKER_INVALID_LOCATOR, "no app in empty_module")
    assert "Horsies()" in str(error.help_text)


def test_module_with_two_apps_needs_a_name(project: Project) -> None:
    project.write("two.py", TWO_APPS)
    error = import_error("two")
    assert error.code is ErrorCode.WORKER_INVALID_LOCATOR
    assert error.help_text == "choose one: two:first or two:second"
    import_app_with_tasks("two:second", load_settings())


def test_wrong_app_name_suggests_the_right_one(project: Project) -> None:
    project.write("named.py", f"{APP}def create(): ...\n")
    assert import_error("named:ap").message == "no 'ap' in named"
    assert import_error("named:create").message == "named:create has type function, not a Horsies app"
    assert import_error("named:create").help_text == "did you mean named:app?"


def test_missing_import_inside_the_module_is_an_import_error(project: Project) -> None:
    path = project.write("needy.py", f"{APP}import not_installed\n")
    error = import_error("needy:app")
    assert error.code is ErrorCode.MODULE_EXEC_ERROR
    assert error.location is not None
    assert (error.location.file, error.location.line) == (str(path), 3)


def test_invalid_setting_in_code_keeps_its_error(project: Project) -> None:
    project.write("wrong.py", "from horsies import AppConfig\nAppConfig(prefetch_buffer=5)\n")
    assert import_error("wrong").code is ErrorCode.CONFIG_INVALID_PREFETCH
