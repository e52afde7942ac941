"""Alias path of the broker, its settings and errors."""

# ruff: noqa: PLC0414  # the alias tells type checkers that the name is exported

from horsies import BrokerError as BrokerError
from horsies import BrokerErrorCode as BrokerErrorCode
from horsies import BrokerOperationError as BrokerOperationError
from horsies import BrokerResult as BrokerResult
from horsies import PostgresBroker as PostgresBroker
from horsies import PostgresConfig as PostgresConfig
