from __future__ import annotations

from horsies.model.settings import AppConfig, PostgresConfig
from horsies.model.settings.schedule import ScheduleConfig, TaskSchedule
from horsies_ops.ops import open_ops


async def test_configured_schedules_are_listed_before_the_first_run(database_url: str) -> None:
    nightly = TaskSchedule(name="nightly", task_name="etl", pattern={"type": "daily", "time": "02:00"})
    broker = PostgresConfig.model_validate({"database_url": database_url})
    async with open_ops(AppConfig(broker=broker, schedule=ScheduleConfig(schedules=[nightly]))) as ops:
        (row,) = await ops.list_schedules()
        assert (row.name, row.pattern, row.run_count) == ("nightly", "daily time=02:00", 0)
        assert await ops.list_schedules([]) == ()
