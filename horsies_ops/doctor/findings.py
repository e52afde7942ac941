"""What a check can find."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horsies.model.settings import AppConfig
    from horsies_ops.reads.facade import Reads


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How one thing stands, and what to do about it."""

    status: Status
    detail: str
    hint: str | None = None


def ok(detail: str) -> Finding:
    return Finding(status=Status.OK, detail=detail)


def warn(detail: str, *, hint: str) -> Finding:
    """Works, and should be looked at."""
    return Finding(status=Status.WARN, detail=detail, hint=hint)


def fail(detail: str, *, hint: str | None) -> Finding:
    """Does not work, or soon will not."""
    return Finding(status=Status.FAIL, detail=detail, hint=hint)


def skip(detail: str) -> Finding:
    """Could not be looked at, or does not apply here."""
    return Finding(status=Status.SKIP, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A finding under its name."""

    name: str
    status: Status
    detail: str
    hint: str | None

    @classmethod
    def of(cls, name: str, finding: Finding) -> Check:
        return cls(name=name, status=finding.status, detail=finding.detail, hint=finding.hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Every check in its order."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether none failed; warnings do not count."""
        return all(check.status is not Status.FAIL for check in self.checks)


# What the doctor looks at.


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """A database that can be read, and the settings of this side."""

    reads: Reads
    settings: AppConfig
