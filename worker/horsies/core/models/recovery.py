"""Alias path of the settings and values of recovery."""

# ruff: noqa: PLC0414  # the alias tells type checkers that the name is exported

from horsies import INFRASTRUCTURE_RESILIENT_FLAG as INFRASTRUCTURE_RESILIENT_FLAG
from horsies import RecoveredWorkers as RecoveredWorkers
from horsies import Recovery as Recovery
from horsies import RecoveryConfig as RecoveryConfig
from horsies import RecoveryContext as RecoveryContext
from horsies import RecoveryReason as RecoveryReason
from horsies import RetentionConfig as RetentionConfig
