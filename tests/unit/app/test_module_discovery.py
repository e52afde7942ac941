"""Task modules are found by pattern and imported in order with sends suppressed."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from horsies import ConfigurationError, ErrorCode, Horsies
from tests.support.cli import Project


def test_pattern_matches_python_files_except_tests(project: Project) -> None:
    wanted = [project.write(f"jobs/{name}") for name in ("a.py", "deep/b.py")]
    for name in ("test_a.py", "a_test.py", "conftest.py", "notes.txt"):
        project.write(f"jobs/{name}")
    assert Horsies().expand_module_globs(["jobs/**/*.py"]) == [str(path) for path in wanted]


def test_excluded_patterns_can_be_changed(project: Project) -> None:
    kept = project.write("jobs/test_a.py")
    project.write("jobs/old.py")
    assert Horsies().expand_module_globs(["jobs/*.py"], exclude=["old.py"]) == [str(kept)]


def test_dotted_names_are_kept_and_duplicates_removed(project: Project) -> None:
    path = project.write("jobs/a.py")
    found = Horsies().expand_module_globs(["shop.tasks", "jobs/*.py", "jobs/a.py", str(path), "shop.tasks"])
    assert found == ["shop.tasks", str(path)]


def test_discover_tasks_imports_nothing(project: Project) -> None:
    app = Horsies()
    app.discover_tasks(["never_there"])
    assert app.get_discovered_task_modules() == ["never_there"]
    assert "never_there" not in sys.modules


GIVEN_TEXT: list[Callable[[Horsies], object]] = [
    lambda app: app.discover_tasks("jobs/*.py"),
    lambda app: app.import_task_modules("jobs/*.py"),
    lambda app: app.expand_module_globs("jobs/*.py"),
    lambda app: app.expand_module_globs([], exclude="jobs/*.py"),
]


@pytest.mark.parametrize("given_text", GIVEN_TEXT)
def test_string_instead_of_a_list_raises(
    given_text: Callable[[Horsies], object],
) -> None:
    with pytest.raises(ConfigurationError, match=r'use \["jobs/\*\.py"\]') as raised:
        given_text(Horsies())
    assert raised.value.code is ErrorCode.CLI_INVALID_ARGS
    assert raised.value.location is not None
    assert raised.value.location.file == __file__


def test_list_of_modules_is_a_copy() -> None:
    app = Horsies()
    app.discover_tasks(["shop.tasks"])
    app.get_discovered_task_modules().clear()
    assert app.get_discovered_task_modules() == ["shop.tasks"]


def test_second_list_of_modules_replaces_the_first_with_warning(caplog: pytest.LogCaptureFixture) -> None:
    app = Horsies()
    app.discover_tasks(["first"])
    app.discover_tasks(["second"])
    assert app.get_discovered_task_modules() == ["second"]
    assert "replaces modules ['first'] with ['second']" in caplog.text


def test_modules_are_imported_by_path_and_name(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(project.folder)
    project.write("by_name.py")
    app = Horsies()
    app.discover_tasks([str(project.write("by_path.py")), "by_name"])
    assert [module.__name__ for module in app.import_task_modules()] == ["by_path", "by_name"]


def test_missing_file_is_skipped_with_a_warning(project: Project, caplog: pytest.LogCaptureFixture) -> None:
    there = str(project.write("there.py"))
    imported = Horsies().import_task_modules(["gone.py", there])
    assert [module.__file__ for module in imported] == [there]
    assert "task module gone.py does not exist" in caplog.text


def test_module_that_raises_stops_the_imports(project: Project) -> None:
    project.write("raising.py", "raise RuntimeError('no')")
    with pytest.raises(ConfigurationError, match="RuntimeError: no") as raised:
        Horsies().import_task_modules(["raising.py"])
    assert raised.value.code is ErrorCode.MODULE_EXEC_ERROR


def test_sends_are_suppressed_only_during_imports(project: Project) -> None:
    project.write("eager.py", "from horsies import Horsies\nsuppressed = Horsies().are_sends_suppressed()")
    app = Horsies()
    (eager,) = app.import_task_modules(["eager.py"])
    assert eager.suppressed
    assert not app.are_sends_suppressed()


def test_suppression_ends_after_a_failed_import(project: Project) -> None:
    project.write("raising.py", "1 / 0")
    app = Horsies()
    with pytest.raises(ConfigurationError):
        app.import_task_modules(["raising.py"])
    assert not app.are_sends_suppressed()
