"""The base of all settings: frozen, closed to unknown names, and wrong in our own words."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from horsies.errors import ConfigurationError, ErrorCode, SourceLocation, raise_together
from horsies.model.settings.fault import Fault, dotted
from horsies.model.settings.findings import faults_in, unknown, without

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


Built = TypeVar("Built")


class Settings(BaseModel):
    """A frozen group of settings.

    Whatever is wrong raises one `ConfigurationError` that holds every fault: unknown names, wrong values, and
    contradictions between those values that are right.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    fault_code: ClassVar[ErrorCode | None] = None
    elsewhere: ClassVar[Mapping[str, str]] = {}

    def __init__(self, /, **given: Any) -> None:
        _build(type(self), partial(super().__init__, **given))

    # Tells pydantic that nested tables need not come through here, where their faults would lose their paths.
    __init__.__pydantic_base_init__ = True  # pyright: ignore[reportFunctionMemberAccess]

    def contradictions(self) -> Iterator[Fault]:
        """Yield a fault for each rule between settings that does not hold."""
        yield from ()

    @classmethod
    def examine(cls, given: Mapping[str, Any]) -> Self | tuple[Fault, ...]:
        """The settings, or everything that is wrong with them; raises nothing."""
        try:
            return super().model_validate(given)
        except ValidationError as invalid:
            return tuple(faults_in(cls, invalid))

    @classmethod
    def unchecked(cls, **given: Any) -> Self:
        """Settings beyond the public ranges, for tests that cannot wait: no range and no contradiction is checked."""
        if faults := [unknown(cls, (name,)) for name in given if name not in cls.model_fields]:
            _complain(cls, faults)
        return cls.model_construct(**given)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        return _build(cls, partial(super().model_validate, obj, **options))

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        return _build(cls, partial(super().model_validate_json, json_data, **options))

    @classmethod
    def model_validate_strings(cls, obj: Any, **options: Any) -> Self:
        return _build(cls, partial(super().model_validate_strings, obj, **options))

    def __setattr__(self, name: str, value: Any) -> None:
        _refuse_change(self, name)

    def __delattr__(self, name: str) -> None:
        _refuse_change(self, name)

    @model_validator(mode="wrap")
    @classmethod
    def _collect(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(given, cls):
            return given  # checked when it was made, or left unchecked on purpose
        try:
            made, faults = handler(given), list[Fault]()
        except ValidationError as invalid:
            faults = faults_in(cls, invalid)
            made = _made_of_the_rest(given, faults, handler)
        if made is not None:
            wrong = [fault.path for fault in faults]
            found = (fault.or_code(cls.fault_code) for fault in made.contradictions())
            faults += [fault for fault in found if not any(map(fault.looks_at, wrong))]
        if made is None or faults:
            raise _carrier(cls, faults) from None
        return made


def _refuse_change(settings: Settings, name: str) -> NoReturn:
    hint = f"make another {type(settings).__name__} with the value you want"
    raise ConfigurationError(f"{name} cannot be changed: settings are frozen", hint=hint)


def _made_of_the_rest(given: Any, faults: list[Fault], handler: ModelWrapValidatorHandler[Built]) -> Built | None:
    """What the right values alone would make, so that contradictions among them come to light as well."""
    if not isinstance(given, dict):
        return None
    try:
        return handler(
            without(cast("dict[str, Any]", given), [path for fault in faults for path in (fault.path, *fault.involved)])
        )
    except ValidationError:
        return None


def _carrier(model: type[Settings], faults: list[Fault]) -> ValidationError:
    """Our faults inside the exception that pydantic carries outwards through enclosing models."""
    details = [
        InitErrorDetails(type=PydanticCustomError("fault", "{fault}", {"fault": fault}), loc=fault.path, input=None)
        for fault in faults
    ]
    return ValidationError.from_exception_data(model.__name__, details)


def _build(model: type[Settings], make: Callable[[], Built]) -> Built:
    try:
        return make()
    except ValidationError as invalid:
        faults = faults_in(model, invalid)
    # Outside the handler: pydantic's exception holds the inputs, and with them passwords.
    return _complain(model, faults)


def _complain(model: type[Settings], faults: list[Fault]) -> Any:
    location = SourceLocation.of_caller()
    errors = [fault.as_error(name=dotted(fault.path) or model.__name__, location=location) for fault in faults]
    raise_together(model.__name__, errors)
