"""An app is validated in phases; the first phase with errors reports them all."""

from __future__ import annotations

import pytest

from horsies import (
    AppConfig,
    CustomQueueConfig,
    ErrorCode,
    Horsies,
    HorsiesError,
    PostgresConfig,
    QueueMode,
    ScheduleConfig,
    TaskError,
    TaskResult,
    TaskSchedule,
)
from horsies.check import first_failed_phase
from horsies.sync import InsideEventLoop
from tests.support.cli import Project

HOURLY = {"type": "hourly", "minute": 0}


class CardDeclined(Exception):
    pass


def codes(errors: list[HorsiesError]) -> list[object]:
    return [error.code for error in errors]


def app_with(*schedules: TaskSchedule) -> Horsies:
    """An app with the task `bill(customer: int, amount: float)` and these schedules."""
    app = Horsies(AppConfig(schedule=ScheduleConfig(schedules=list(schedules))))

    @app.task("bill")
    def bill(customer: int, amount: float) -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    del bill
    return app


def schedule(**fields: object) -> TaskSchedule:
    return TaskSchedule.model_validate({"name": "billing", "task_name": "bill", "pattern": HOURLY, **fields})


def test_valid_app_has_no_errors() -> None:
    assert Horsies().check() == []


def test_queues_of_the_worker_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_WORKER__QUEUES", '["mail", "fax"]')
    failed = first_failed_phase(Horsies())
    assert failed is not None
    assert failed.phase == "settings"
    assert codes(list(failed.errors)) == [ErrorCode.TASK_INVALID_QUEUE] * 2


def test_every_failing_task_module_is_reported(project: Project) -> None:
    project.write("raises.py", "1 / 0")
    project.write("mistyped.py", "def (:")
    project.write("fine.py")
    app = Horsies()
    app.discover_tasks(["raises.py", "fine.py", "mistyped.py", "gone.py", "no.such.module"])
    failed = first_failed_phase(app)
    assert failed is not None
    assert failed.phase == "imports"
    assert codes(list(failed.errors)) == [
        ErrorCode.MODULE_EXEC_ERROR,
        ErrorCode.MODULE_EXEC_ERROR,
        ErrorCode.CLI_INVALID_ARGS,
        ErrorCode.MODULE_EXEC_ERROR,
    ]


def test_errors_of_one_definition_are_listed_separately(project: Project) -> None:
    project.write(
        "wrong.py", "from horsies import Horsies\n@Horsies().task('t', priority=0, timeout_ms=1)\ndef t(): ..."
    )
    app = Horsies()
    app.discover_tasks(["wrong.py"])
    errors = app.check()
    assert codes(errors) == [
        ErrorCode.TASK_NO_RETURN_TYPE,
        ErrorCode.TASK_INVALID_OPTIONS,
        ErrorCode.TASK_INVALID_OPTIONS,
    ]
    assert all(error.location is not None and error.location.line == 2 for error in errors)


THREE_WRONG = """
from horsies import Horsies, TaskError, TaskResult

app = Horsies()

@app.task("fine")
def fine() -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)

@app.task("undeclared")
def undeclared():
    return TaskResult(ok=None)

@app.task("bare")
def bare() -> TaskResult:
    return 1

@app.task("fine")
def doubled() -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)
"""


def test_repeated_check_reports_every_invalid_task_again(project: Project) -> None:
    project.write("three_wrong.py", THREE_WRONG)
    app = Horsies()
    app.discover_tasks(["three_wrong.py"])
    for _ in range(2):
        assert [(error.code, error.location and error.location.line) for error in app.check()] == [
            (ErrorCode.TASK_NO_RETURN_TYPE, 10),
            (ErrorCode.TASK_INVALID_RETURN_TYPE, 14),
            (ErrorCode.TASK_DUPLICATE_NAME, 18),
        ]


def test_task_must_not_use_reserved_error_codes() -> None:
    app = Horsies()

    @app.task("pay", exception_mapper={CardDeclined: "TASK_CANCELLED"}, default_unhandled_error_code="WORKER_CRASHED")
    def pay() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    errors = app.check()
    assert codes(errors) == [ErrorCode.CHECK_RESERVED_CODE_COLLISION] * 2
    assert {error.location for error in errors} == {pay.definition.location}
    assert errors[0].notes == ("in task 'pay'",)


def test_app_must_not_use_reserved_error_codes() -> None:
    errors = Horsies(AppConfig(exception_mapper={CardDeclined: "POISON_TASK"})).check()
    assert codes(errors) == [ErrorCode.CHECK_RESERVED_CODE_COLLISION]
    assert errors[0].notes == ("in the app's settings",)


def test_custom_error_codes_are_accepted() -> None:
    app = Horsies(AppConfig(exception_mapper={CardDeclined: "DECLINED"}, default_unhandled_error_code="BROKEN"))
    assert app.check() == []


def test_schedule_with_matching_arguments_is_valid() -> None:
    assert app_with(schedule(args=(7,), kwargs={"amount": 9.5})).check() == []


def test_task_of_a_schedule_must_be_registered() -> None:
    (error,) = app_with(schedule(task_name="bil")).check()
    assert error.code is ErrorCode.TASK_NOT_REGISTERED
    assert error.notes == ("in schedule 'billing'",)


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"args": (7,)}, "amount"), ({"args": ("x", 1)}, "customer"), ({"args": (7, 1), "kwargs": {"vat": 1}}, "vat")],
)
def test_arguments_of_a_schedule_must_match_its_task(fields: dict[str, object], named: str) -> None:
    (error,) = app_with(schedule(**fields)).check()
    assert error.code is ErrorCode.CONFIG_INVALID_SCHEDULE
    assert named in error.message


def test_queue_of_a_schedule_must_be_configured() -> None:
    queues = [CustomQueueConfig(name="mail")]
    schedules = ScheduleConfig(schedules=[schedule(queue_name="fax")])
    app = Horsies(AppConfig(queue_mode=QueueMode.CUSTOM, custom_queues=queues, schedule=schedules))
    assert codes(app.check()) == [ErrorCode.TASK_INVALID_QUEUE, ErrorCode.TASK_NOT_REGISTERED]


def test_every_schedule_is_checked_and_errors_name_the_file(project: Project) -> None:
    entry = '[[schedule.entries]]\nname = "{}"\ntask_name = "none"\npattern = {{ type = "hourly", minute = 0 }}\n'
    path = project.write("horsies.toml", entry.format("a") + entry.format("b"))
    errors = Horsies().check()
    assert [error.notes for error in errors] == [("in schedule 'a'",), ("in schedule 'b'",)]
    assert all(error.location is not None and error.location.file == str(path) for error in errors)


def test_phase_with_errors_stops_the_check(project: Project) -> None:
    project.write("raises.py", "1 / 0")
    app = app_with(schedule(task_name="unknown"))
    app.discover_tasks(["raises.py"])
    assert codes(app.check(live=True)) == [ErrorCode.MODULE_EXEC_ERROR]


def test_unreachable_server_is_one_error_without_password() -> None:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url="postgresql://me:hunter2@127.0.0.1:1/db")))
    (error,) = app.check(live=True)
    assert error.code is ErrorCode.BROKER_INIT_FAILED
    assert "hunter2" not in str(error)


async def test_live_check_raises_inside_an_event_loop() -> None:
    with pytest.raises(InsideEventLoop):
        Horsies().check(live=True)
