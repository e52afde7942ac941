"""User code is imported once under its module name; errors name the location."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from horsies.errors import (
    ConfigurationError,
    ErrorCode,
    MultipleValidationErrors,
    SourceLocation,
    TaskDefinitionError,
)
from horsies.task_modules import add_to_sys_path, import_file, import_module_or_file, sends_suppressed
from tests.support.cli import APP, Project


def import_error_of(name: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as raised:
        import_module_or_file(name)
    return raised.value


def test_file_is_imported_once(project: Project) -> None:
    path = project.write("loose_tasks.py", "made = object()")
    assert import_file(path) is import_file(Path("loose_tasks.py"))


def test_files_with_equal_names_are_different_modules(project: Project) -> None:
    first = import_file(project.write("mail/loose.py", "queue = 'mail'"))
    second = import_file(project.write("reports/loose.py", "queue = 'reports'"))
    assert (first.queue, second.queue) == ("mail", "reports")
    assert first.__name__ == "loose"
    assert sys.modules[second.__name__] is second


def test_file_in_a_package_is_imported_as_its_member(project: Project) -> None:
    for file in ("shop/__init__.py", "shop/jobs/__init__.py"):
        project.write(file)
    project.write("shop/settings.py", "made = object()")
    jobs = import_file(project.write("shop/jobs/mail.py", "from ..settings import made"))
    assert jobs.__name__ == "shop.jobs.mail"
    assert import_file(Path("shop/settings.py")).made is jobs.made


def test_init_file_is_imported_as_the_package(project: Project) -> None:
    assert import_file(project.write("store_front/__init__.py")).__name__ == "store_front"


def test_package_with_a_used_name_is_imported_by_file(project: Project) -> None:
    project.write("json/__init__.py")
    assert import_file(project.write("json/my_tasks.py", "mine = True")).mine


def test_import_error_names_the_line_that_raised(project: Project) -> None:
    path = project.write("broken.py", "import json\n\njson.loads('{')\n")
    error = import_error_of("broken.py")
    assert error.code is ErrorCode.MODULE_EXEC_ERROR
    assert "cannot import broken.py: JSONDecodeError" in error.message
    assert error.location == SourceLocation(str(path), 3)
    assert "on its own: python broken.py" in str(error)


def test_syntax_error_names_its_line(project: Project) -> None:
    path = project.write("unfinished.py", "fine = 1\ndef (:\n")
    assert import_error_of("unfinished.py").location == SourceLocation(str(path), 2)


def test_missing_module_has_no_location_inside_horsies() -> None:
    error = import_error_of("no.such.module")
    assert (error.code, error.location) == (ErrorCode.MODULE_EXEC_ERROR, None)
    assert "python -c 'import no.such.module'" in str(error)


def test_module_that_exits_is_an_import_error(project: Project) -> None:
    project.write("script.py", "import sys\nsys.exit(3)\n")
    assert "SystemExit: 3" in import_error_of("script.py").message


def test_validation_errors_are_raised_unchanged(project: Project) -> None:
    project.write("wrong_task.py", "from horsies import Horsies\n@Horsies().task('t')\ndef t(): ...\n")
    with pytest.raises(TaskDefinitionError):
        import_module_or_file("wrong_task.py")


INVALID_POLICY = """
from horsies import RetryPolicy

policy = RetryPolicy.fixed([], auto_retry_for=["LATE"])
"""

SENDING = """
from main import app
from work import work

handle = work.send(1).unwrap()
"""


def test_invalid_retry_policy_names_its_line(project: Project) -> None:
    path = project.write("policies.py", INVALID_POLICY)
    with pytest.raises(TaskDefinitionError) as caught:
        import_module_or_file("policies.py")
    assert caught.value.message == "RetryPolicy: intervals: must have a length of at least 1"
    assert caught.value.location == SourceLocation(str(path), 4)


def test_send_during_import_gives_a_hint(project: Project) -> None:
    add_to_sys_path(project.folder)
    project.write("main.py", APP)
    project.write_task("work.py", name="work")
    path = project.write("sending.py", SENDING)
    with sends_suppressed():
        error = import_error_of("sending.py")
    assert error.code is ErrorCode.MODULE_EXEC_ERROR
    assert error.location == SourceLocation(str(path), 5)
    assert "SEND_SUPPRESSED" in error.message
    assert "sends are suppressed while modules are imported" in (error.help_text or "")


def test_other_horsies_errors_become_import_errors(project: Project) -> None:
    path = project.write("unwrapping.py", "from horsies import Err\nErr('no number').unwrap()\n")
    error = import_error_of("unwrapping.py")
    assert error.code is ErrorCode.MODULE_EXEC_ERROR
    assert error.message == "cannot import unwrapping.py: UnwrapError: unwrap() called on an Err: 'no number'"
    assert error.location == SourceLocation(str(path), 2)


def test_import_continues_after_an_invalid_task(project: Project) -> None:
    project.write(
        "half_wrong.py", "from horsies import Horsies\n@Horsies().task('t')\ndef t(): ...\nt.bind(1)\n1 / 0\n"
    )
    with pytest.raises(MultipleValidationErrors) as caught:
        import_module_or_file("half_wrong.py")
    assert [error.code for error in caught.value.faults] == [ErrorCode.TASK_NO_RETURN_TYPE, ErrorCode.MODULE_EXEC_ERROR]


def test_modules_with_invalid_tasks_are_removed(project: Project) -> None:
    add_to_sys_path(project.folder)
    project.write("bureau/__init__.py")
    import_module_or_file("bureau")
    project.write("bureau/jobs.py", "from horsies import Horsies\n@Horsies().task\ndef job(): ...\n")
    project.write("bureau/main.py", "from bureau import jobs\n")
    for _ in range(2):
        with pytest.raises(TaskDefinitionError, match="has no return annotation"):
            import_module_or_file("bureau.main")
    assert not hasattr(sys.modules["bureau"], "jobs")


def test_module_that_raised_is_removed(project: Project) -> None:
    project.write("second_try.py", "1 / 0")
    import_error_of("second_try.py")
    project.write("second_try.py", "fine = True  # now")
    assert import_module_or_file("second_try.py").fine
