"""Values of the doctor: the finding of a check, and the diagnosis with all of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckStatus(StrEnum):
    OK = "ok"
    WARN = "warn"
    """Works, but needs attention."""
    FAIL = "fail"
    """Does not work, or soon will not."""
    SKIP = "skip"
    """Could not be checked, or does not apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check, and how to fix what it found."""

    name: str = ""
    """Name of the check; rules leave it empty and `diagnose` sets it."""
    status: CheckStatus
    detail: str
    hint: str | None = None


def ok(detail: str) -> Finding:
    return Finding(status=CheckStatus.OK, detail=detail)


def warn(detail: str, *, hint: str) -> Finding:
    return Finding(status=CheckStatus.WARN, detail=detail, hint=hint)


def fail(detail: str, *, hint: str | None) -> Finding:
    return Finding(status=CheckStatus.FAIL, detail=detail, hint=hint)


def skip(detail: str) -> Finding:
    return Finding(status=CheckStatus.SKIP, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The findings of all checks, in a fixed order."""

    checks: tuple[Finding, ...]

    @property
    def is_ok(self) -> bool:
        """Whether no check failed; warnings do not count."""
        return all(check.status is not CheckStatus.FAIL for check in self.checks)
