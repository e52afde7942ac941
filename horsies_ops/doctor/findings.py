"""Values of the doctor: the target of a check, its finding, and the diagnosis with all of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from horsies.model.settings import AppConfig
from horsies_ops.reads.facade import OpsReads


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTarget:
    """What checks read: a database, and the settings of this process."""

    reads: OpsReads
    settings: AppConfig


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
class CheckResult:
    """A finding with the name of its check."""

    name: str
    status: CheckStatus
    detail: str
    hint: str | None

    @classmethod
    def of(cls, name: str, finding: Finding) -> CheckResult:
        return cls(name=name, status=finding.status, detail=finding.detail, hint=finding.hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The results of all checks, in a fixed order."""

    checks: tuple[CheckResult, ...]

    @property
    def is_ok(self) -> bool:
        """Whether no check failed; warnings do not count."""
        return all(check.status is not CheckStatus.FAIL for check in self.checks)
