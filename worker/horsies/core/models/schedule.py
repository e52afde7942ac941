"""Alias path of the schedules."""

from horsies.model.settings import ScheduleConfig, TaskSchedule

__all__ = ["ScheduleConfig", "TaskSchedule"]
