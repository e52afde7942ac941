"""Documented import path of `horsies.errors`."""

from horsies.errors import (
    BrokerError,
    BrokerErrorCode,
    ConfigurationError,
    ErrorCode,
    HorsiesError,
    MultipleValidationErrors,
    RegistryError,
    SourceLocation,
    TaskDefinitionError,
    ValidationReport,
    WorkflowValidationError,
    raise_together,
)

__all__ = [
    "BrokerError",
    "BrokerErrorCode",
    "ConfigurationError",
    "ErrorCode",
    "HorsiesError",
    "MultipleValidationErrors",
    "RegistryError",
    "SourceLocation",
    "TaskDefinitionError",
    "ValidationReport",
    "WorkflowValidationError",
    "raise_together",
]
