"""`Result`, a value that is either `Ok` or `Err`, and the results of broker operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, Never, NoReturn, TypeAlias, TypeVar, cast

from typing_extensions import TypeIs

from horsies.errors import BrokerErrorCode, HorsiesError

T = TypeVar("T")
E = TypeVar("E")
T_co = TypeVar("T_co", covariant=True)
E_co = TypeVar("E_co", covariant=True)
U = TypeVar("U")
F = TypeVar("F")


class UnwrapError(HorsiesError):
    """Raised by `unwrap()` and similar methods when the result is of the other kind; `result` holds it."""

    def __init__(self, message: str, result: Ok[object] | Err[object], /) -> None:
        super().__init__(message, hint="check is_ok() first, or match on Ok and Err")
        self.result = result
        self.__cause__ = None if isinstance(result, Ok) else cause_of(result.error)


@dataclass(frozen=True, slots=True)
class Ok(Generic[T_co]):
    """A success with its value."""

    value: T_co

    def __str__(self) -> str:
        return f"Ok({self.value!r})"

    def is_ok(self) -> Literal[True]:
        return True

    def is_err(self) -> Literal[False]:
        return False

    def ok(self) -> T_co:
        return self.value

    def err(self) -> None:
        return None

    @property
    def ok_value(self) -> T_co:
        return self.value

    @property
    def err_value(self) -> NoReturn:
        raise UnwrapError("err_value read from an Ok", self)

    def unwrap(self) -> T_co:
        return self.value

    def unwrap_err(self) -> NoReturn:
        raise UnwrapError("unwrap_err() called on an Ok", self)

    def expect(self, _msg: str, /) -> T_co:
        return self.value

    def expect_err(self, msg: str, /) -> NoReturn:
        raise UnwrapError(msg, self)

    def unwrap_or(self, _default: object, /) -> T_co:
        return self.value

    def unwrap_or_else(self, _make: Callable[[Never], object], /) -> T_co:
        return self.value

    def unwrap_or_raise(self, _make: Callable[[Never], BaseException], /) -> T_co:
        return self.value

    def map(self, fn: Callable[[T_co], U], /) -> Ok[U]:
        return Ok(fn(self.value))

    def map_or(self, _default: object, fn: Callable[[T_co], U], /) -> U:
        return fn(self.value)

    def map_or_else(self, _make: Callable[[], object], fn: Callable[[T_co], U], /) -> U:
        return fn(self.value)

    def map_err(self, _fn: Callable[[Never], object], /) -> Ok[T_co]:
        return self

    def and_then(self, fn: Callable[[T_co], Result[U, F]], /) -> Result[U, F]:
        return fn(self.value)

    def or_else(self, _fn: Callable[[Never], object], /) -> Ok[T_co]:
        return self

    def inspect(self, fn: Callable[[T_co], object], /) -> Ok[T_co]:
        fn(self.value)
        return self

    def inspect_err(self, _fn: Callable[[Never], object], /) -> Ok[T_co]:
        return self


@dataclass(frozen=True, slots=True)
class Err(Generic[E_co]):
    """A failure with its error."""

    error: E_co

    def __str__(self) -> str:
        return f"Err({summarize_error(self.error)})"

    def is_ok(self) -> Literal[False]:
        return False

    def is_err(self) -> Literal[True]:
        return True

    def ok(self) -> None:
        return None

    def err(self) -> E_co:
        return self.error

    @property
    def ok_value(self) -> NoReturn:
        raise UnwrapError(f"ok_value read from an Err: {summarize_error(self.error)}", self)

    @property
    def err_value(self) -> E_co:
        return self.error

    def unwrap(self) -> NoReturn:
        raise UnwrapError(f"unwrap() called on an Err: {summarize_error(self.error)}", self)

    def unwrap_err(self) -> E_co:
        return self.error

    def expect(self, msg: str, /) -> NoReturn:
        raise UnwrapError(f"{msg}: {summarize_error(self.error)}", self)

    def expect_err(self, _msg: str, /) -> E_co:
        return self.error

    def unwrap_or(self, default: U, /) -> U:
        return default

    def unwrap_or_else(self, make: Callable[[E_co], U], /) -> U:
        return make(self.error)

    def unwrap_or_raise(self, make: Callable[[E_co], BaseException], /) -> NoReturn:
        """Raise the exception that `make` builds from the error; an exception class works too."""
        raise make(self.error)

    def map(self, _fn: Callable[[Never], object], /) -> Err[E_co]:
        return self

    def map_or(self, default: U, _fn: Callable[[Never], object], /) -> U:
        return default

    def map_or_else(self, make: Callable[[], U], _fn: Callable[[Never], object], /) -> U:
        return make()

    def map_err(self, fn: Callable[[E_co], F], /) -> Err[F]:
        return Err(fn(self.error))

    def and_then(self, _fn: Callable[[Never], object], /) -> Err[E_co]:
        return self

    def or_else(self, fn: Callable[[E_co], Result[U, F]], /) -> Result[U, F]:
        return fn(self.error)

    def inspect(self, _fn: Callable[[Never], object], /) -> Err[E_co]:
        return self

    def inspect_err(self, fn: Callable[[E_co], object], /) -> Err[E_co]:
        fn(self.error)
        return self


Result: TypeAlias = Ok[T] | Err[E]


def is_ok(result: Result[T, E]) -> TypeIs[Ok[T]]:
    """Whether the result is an `Ok`; narrows its type. Raises `TypeError` for anything that is not a Result."""
    return isinstance(_require_result(result), Ok)


def is_err(result: Result[T, E]) -> TypeIs[Err[E]]:
    """Whether the result is an `Err`; narrows its type. Raises `TypeError` for anything that is not a Result."""
    return isinstance(_require_result(result), Err)


def _require_result(value: object) -> object:
    if not isinstance(value, (Ok, Err)):
        raise TypeError(f"expected Ok or Err, got {type(value).__qualname__}")
    return cast("object", value)


def cause_of(error: object) -> BaseException | None:
    """The exception behind an error: the error itself, or its `exception`; None if there is none."""
    cause = error if isinstance(error, BaseException) else getattr(error, "exception", None)
    return cause if isinstance(cause, BaseException) else None


def summarize_error(error: Any) -> str:
    """Summarize an error value in one line: code, message and exception class; else its repr.

    Leaves out data and tracebacks, which may be long or secret.
    """
    if not hasattr(error, "message"):
        return repr(error)
    code = getattr(error, "error_code", None) or getattr(error, "code", None)
    summary = ": ".join(str(part) for part in (code, error.message) if part) or type(error).__qualname__
    class_name = _exception_class_name(getattr(error, "exception", None)) if hasattr(error, "error_code") else None
    # The message of an exception that nobody caught begins with its class.
    return summary if class_name is None or class_name in summary else f"{summary} ({class_name})"


def _exception_class_name(exception: object) -> str | None:
    if isinstance(exception, BaseException):
        return type(exception).__qualname__
    # Read back from the database, it is a mapping of texts.
    return cast("Mapping[str, Any]", exception).get("type") if isinstance(exception, Mapping) else None


# Broker operations


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOperationError:
    """A failed broker operation; `retryable` means the same call may succeed later."""

    code: BrokerErrorCode
    message: str
    retryable: bool = False
    exception: BaseException | None = None


BrokerResult: TypeAlias = Result[T, BrokerOperationError]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabasePing:
    """The database's answer to a ping."""

    latency_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPong:
    """A worker's answer to a ping."""

    worker_id: str
    hostname: str
    pid: int
    latency_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """Limits and current load of a worker."""

    worker_id: str
    hostname: str
    pid: int
    processes: int
    max_claim_batch: int
    max_claim_per_worker: int
    cluster_wide_cap: int | None
    queues: list[str]
    queue_priorities: dict[str, int]
    queue_max_concurrency: dict[str, int | None]
    recovery_config: dict[str, object]
    tasks_running: int
    tasks_claimed: int
    memory_usage_mb: float | None
    memory_percent: float | None
    cpu_percent: float | None
    children_memory_mb: float | None
    worker_started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStateSnapshot(WorkerLoad):
    """A worker's published state at one moment."""

    snapshot_at: datetime
