"""What a task returns: a value, or the error that took its place."""

from __future__ import annotations

from enum import Enum
from typing import Generic, Never, overload

from typing_extensions import TypeVar

from horsies.model.task_error import TaskError
from horsies.model.telling import told

# The defaults let a checker know the whole type of a result made away from any annotation.
T_co = TypeVar("T_co", covariant=True, default=Never)
E_co = TypeVar("E_co", covariant=True, default=TaskError)


class _Side(Enum):
    """Marks the side that was not given; None is a value like any other."""

    ABSENT = "absent"


_ABSENT = _Side.ABSENT


class TaskResult(Generic[T_co, E_co]):
    """Exactly one of `ok` and `err`; `TaskResult(ok=None)` is a success.

    `ok` and `err` never raise and are None on the other side; the other accessors raise `ValueError` there.
    """

    __slots__ = ("_err", "_ok")
    __match_args__ = ("ok", "err")

    @overload
    def __init__(self, *, ok: T_co) -> None: ...
    @overload
    def __init__(self, *, err: E_co) -> None: ...
    def __init__(self, *, ok: T_co | _Side = _ABSENT, err: E_co | _Side = _ABSENT) -> None:
        if (ok is _ABSENT) == (err is _ABSENT):
            raise ValueError("a TaskResult has either ok or err")
        if err is None:
            raise ValueError("err=None says nothing; give a TaskError")
        self._ok = ok
        self._err = err

    def is_ok(self) -> bool:
        return self._err is _ABSENT

    def is_err(self) -> bool:
        return self._err is not _ABSENT

    @property
    def ok(self) -> T_co | None:
        return None if isinstance(self._ok, _Side) else self._ok

    @property
    def err(self) -> E_co | None:
        return None if isinstance(self._err, _Side) else self._err

    @property
    def ok_value(self) -> T_co:
        if isinstance(self._ok, _Side):
            raise ValueError(f"the task failed, there is no value: {told(self._err)}")  # noqa: TRY004 - the documented class
        return self._ok

    @property
    def err_value(self) -> E_co:
        if isinstance(self._err, _Side):
            raise ValueError("the task succeeded, there is no error")  # noqa: TRY004 - the documented class
        return self._err

    def unwrap(self) -> T_co:
        return self.ok_value

    def unwrap_err(self) -> E_co:
        return self.err_value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskResult):
            return NotImplemented
        return self._sides() == other._sides()

    def __hash__(self) -> int:
        return hash(self._sides())

    def __repr__(self) -> str:
        return f"TaskResult(ok={self._ok!r})" if self.is_ok() else f"TaskResult(err={self._err!r})"

    def _sides(self) -> tuple[object, object]:
        return self._ok, self._err
