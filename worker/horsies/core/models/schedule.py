"""Alias path of the schedules."""

# ruff: noqa: PLC0414  # the alias tells type checkers that the name is exported

from horsies import BothDays as BothDays
from horsies import ByMonthDay as ByMonthDay
from horsies import ByWeekday as ByWeekday
from horsies import CronEnumRange as CronEnumRange
from horsies import CronEnumStep as CronEnumStep
from horsies import CronEnumValues as CronEnumValues
from horsies import CronEvery as CronEvery
from horsies import CronRange as CronRange
from horsies import CronSchedule as CronSchedule
from horsies import CronStep as CronStep
from horsies import CronValues as CronValues
from horsies import DailySchedule as DailySchedule
from horsies import DaySelector as DaySelector
from horsies import EitherDay as EitherDay
from horsies import EveryDay as EveryDay
from horsies import HourlySchedule as HourlySchedule
from horsies import IntervalSchedule as IntervalSchedule
from horsies import Month as Month
from horsies import MonthlySchedule as MonthlySchedule
from horsies import ScheduleConfig as ScheduleConfig
from horsies import SchedulePattern as SchedulePattern
from horsies import TaskSchedule as TaskSchedule
from horsies import Weekday as Weekday
from horsies import WeeklySchedule as WeeklySchedule
