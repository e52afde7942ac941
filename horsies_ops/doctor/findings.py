"""What a check can find."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from horsies.model.settings import AppConfig
from horsies_ops.reads.facade import OpsReads


class CheckStatus(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How one thing stands, and what to do about it."""

    status: CheckStatus
    detail: str
    hint: str | None = None


def ok(detail: str) -> Finding:
    return Finding(status=CheckStatus.OK, detail=detail)


def warn(detail: str, *, hint: str) -> Finding:
    """Works, and should be looked at."""
    return Finding(status=CheckStatus.WARN, detail=detail, hint=hint)


def fail(detail: str, *, hint: str | None) -> Finding:
    """Does not work, or soon will not."""
    return Finding(status=CheckStatus.FAIL, detail=detail, hint=hint)


def skip(detail: str) -> Finding:
    """Could not be looked at, or does not apply here."""
    return Finding(status=CheckStatus.SKIP, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """A finding under its name."""

    name: str
    status: CheckStatus
    detail: str
    hint: str | None

    @classmethod
    def of(cls, name: str, finding: Finding) -> CheckResult:
        return cls(name=name, status=finding.status, detail=finding.detail, hint=finding.hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Every check in its order."""

    checks: tuple[CheckResult, ...]

    @property
    def is_ok(self) -> bool:
        """Whether none failed; warnings do not count."""
        return all(check.status is not CheckStatus.FAIL for check in self.checks)


# What the doctor looks at.


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTarget:
    """A database that can be read, and the settings of this side."""

    reads: OpsReads
    settings: AppConfig
