"""The base of all settings: frozen, closed to unknown names, and wrong in our own words."""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NoReturn,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, Strict, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from horsies.errors import ConfigurationError, ErrorCode, SourceLocation, raise_together

# One thing that is wrong with a setting, before anyone knows where the setting came from.

SettingPath: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A broken rule: `path` is the setting to blame, `involved` every setting the rule looked at.

    Paths start at the model that was asked. Without a `code` the model's own one applies.
    """

    path: SettingPath
    text: str
    code: ErrorCode | None = None
    hint: str | None = None
    involved: tuple[SettingPath, ...] = ()

    @classmethod
    def between(cls, *names: str, text: str, code: ErrorCode | None = None, hint: str | None = None) -> Fault:
        """A contradiction between the named settings (dots descend); the first one is to blame."""
        paths = tuple(tuple(name.split(".")) for name in names)
        return cls(path=paths[0], text=text, code=code, hint=hint, involved=paths)

    def involves(self, path: SettingPath) -> bool:
        """Whether the rule read the setting at `path`, something inside it, or the group around it."""
        return any(known[: len(path)] == path[: len(known)] for known in self.involved)

    def with_parent(self, parent: SettingPath) -> Fault:
        return replace(self, path=parent + self.path, involved=tuple(parent + path for path in self.involved))

    def with_default_code(self, code: ErrorCode | None) -> Fault:
        return self if self.code is not None else replace(self, code=code)

    def as_error(
        self, *, name: str | None = None, source: str = "", location: SourceLocation | None = None
    ) -> ConfigurationError:
        """The error a user sees; `source` says whose value it was when that was not the user's own code."""
        prefix = f"{source}: " if source else ""
        message = f"{prefix}{name or format_path(self.path)}: {self.text}"
        return ConfigurationError(message, code=self.code, hint=self.hint, location=location)


def format_path(path: SettingPath) -> str:
    """`("custom_queues", 0, "priority")` as `custom_queues[0].priority`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


# The rule of a field in words, read off its annotation, so that no message repeats a range by hand.

LONGEST_SHOWN = 40


@dataclass(frozen=True, slots=True)
class RuleText:
    """States the rule of a field in our own words, for rules that the annotation cannot express."""

    text: str
    unset: str = "none"
    """What there is where the field is left out, if it has no default."""


def describe_rule(field: FieldInfo) -> str:
    """What the field must be, as the end of a sentence that starts with "must be"."""
    kinds = union_members(field.annotation)
    said = _find_rule_text(field)
    text = said.text if said else _describe_type(kinds[0]) + _bounds(field)
    return f"{text}, or none" if type(None) in kinds else text


def describe_default(field: FieldInfo) -> str | None:
    """What to fall back on, as a hint; None for a field that has no default."""
    if field.is_required():
        return None
    default = field.get_default(call_default_factory=True)
    if default is not None:
        return f"the default is {json.dumps(default, default=str)}"
    said = _find_rule_text(field)
    return f"leave it out for {said.unset if said else 'none'}"


def _find_rule_text(field: FieldInfo) -> RuleText | None:
    return next((item for item in field.metadata if isinstance(item, RuleText)), None)


def union_members(annotation: Any) -> tuple[Any, ...]:
    """The types a value may have, constraints left out; None comes as `NoneType`."""
    is_union = get_origin(annotation) in (Union, types.UnionType)
    found = get_args(annotation) if is_union else (annotation,)
    return tuple(get_args(member)[0] if get_origin(member) is Annotated else member for member in found)


def format_given(value: object) -> str:
    """`, got …` for values that cannot hold a secret, else nothing."""
    if isinstance(value, bool | int | float | Enum) or value is None:
        return f", got {value}"
    if isinstance(value, str) and len(value) <= LONGEST_SHOWN and not set("@=:") & set(value):
        return f", got {value!r}"
    return ""


def describe_unknown_key(name: str, known: Iterable[str]) -> tuple[str, str | None]:
    """What to say about a name nobody knows: the nearest known one, or, as a hint, all of them."""
    names = sorted(known)
    if near := difflib.get_close_matches(name, names, n=1):
        return f"unknown key, did you mean {near[0]}?", None
    return "unknown key", "known here: " + ", ".join(names)


def _describe_type(annotation: Any) -> str:
    origin = get_origin(annotation) or annotation
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(annotation))
    if issubclass(origin, Enum):
        return "one of " + ", ".join(str(choice.value) for choice in origin)
    for known, words in _TYPE_NAMES.items():
        if issubclass(origin, known):
            return words
    return "a table of settings"


# In this order: a bool is an int and a str is a Sequence.
_TYPE_NAMES: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Sequence: "a list",
    Mapping: "a table",
}


def _bounds(field: FieldInfo) -> str:
    low = next((item.ge for item in field.metadata if isinstance(item, Ge)), None)
    high = next((item.le for item in field.metadata if isinstance(item, Le)), None)
    if low is None:
        return ""
    return f" of at least {low}" if high is None else f" from {low} to {high}"


# Pydantic's findings, told as our faults.


def faults_in(model: type[Settings], invalid: ValidationError) -> list[Fault]:
    """One fault for each wrong setting, in the order in which pydantic met them."""
    # Pydantic reports a wrong value once for every member of a union, and every wrong item of a list.
    return list(dict.fromkeys(_fault(model, error) for error in invalid.errors(include_url=False)))


def unknown_key_fault(model: type[Settings], path: SettingPath) -> Fault:
    """A name that the model does not have, with the place it moved to or the nearest name it does have."""
    name = str(path[-1])
    if place := model.elsewhere.get(name):
        return moved_key_fault(path, place, code=model.fault_code)
    text, hint = describe_unknown_key(name, model.model_fields)
    return Fault(path=path, text=text, code=ErrorCode.CONFIG_UNKNOWN_KEY, hint=hint)


def moved_key_fault(path: SettingPath, place: str, *, code: ErrorCode | None = None) -> Fault:
    return Fault(path=path, text="is set elsewhere", code=code or ErrorCode.CONFIG_UNKNOWN_KEY, hint=f"use {place}")


def drop_paths(given: dict[str, Any], paths: Iterable[SettingPath]) -> dict[str, Any]:
    """A copy without the settings at `paths`, of which those inside a list take the whole list with them."""
    kept = dict(given)
    for name, *rest in paths:
        inner = kept.get(str(name))
        if rest and isinstance(inner, dict):
            kept[str(name)] = drop_paths(cast("dict[str, Any]", inner), [tuple(rest)])
        else:
            kept.pop(str(name), None)
    return kept


def _fault(model: type[Settings], error: ErrorDetails) -> Fault:
    path = error["loc"]
    context = error.get("ctx", {})
    if isinstance(carried := context.get("fault"), Fault):
        return carried.with_parent(path[: len(path) - len(carried.path)])
    if not path:
        return Fault(path=(), text="must be a table of settings", code=model.fault_code)
    if error["type"] == "extra_forbidden":
        return unknown_key_fault(model, path)
    field = model.model_fields[str(path[0])]
    text, hint = _complaint(error, field, context.get("error"))
    return Fault(path=path[:1], text=text, hint=hint, code=_code_of(field) or model.fault_code)


def _complaint(error: ErrorDetails, field: FieldInfo, cause: object) -> tuple[str, str | None]:
    if error["type"] == "missing":
        return f"must be given: {describe_rule(field)}", None
    if isinstance(cause, ConfigurationError):
        return cause.message, cause.help_text
    got = format_given(error["input"]) if len(error["loc"]) == 1 else ""
    return f"must be {describe_rule(field)}{got}", describe_default(field)


def _code_of(field: FieldInfo) -> ErrorCode | None:
    return next((item for item in field.metadata if isinstance(item, ErrorCode)), None)


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
        _validate_or_raise(type(self), partial(super().__init__, **given))

    # Tells pydantic that nested tables need not come through here, where their faults would lose their paths.
    __init__.__pydantic_base_init__ = True  # pyright: ignore[reportFunctionMemberAccess]

    def contradictions(self) -> Iterator[Fault]:
        """Yield a fault for each rule between settings that does not hold."""
        yield from ()

    @classmethod
    def try_validate(cls, given: Mapping[str, Any]) -> Self | tuple[Fault, ...]:
        """The settings, or everything that is wrong with them; raises nothing."""
        try:
            return super().model_validate(given)
        except ValidationError as invalid:
            return tuple(faults_in(cls, invalid))

    @classmethod
    def unchecked(cls, **given: Any) -> Self:
        """Settings beyond the public ranges, for tests that cannot wait: no range and no contradiction is checked."""
        if faults := [unknown_key_fault(cls, (name,)) for name in given if name not in cls.model_fields]:
            _raise_faults(cls, faults)
        return cls.model_construct(**given)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        return _validate_or_raise(cls, partial(super().model_validate, obj, **options))

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        return _validate_or_raise(cls, partial(super().model_validate_json, json_data, **options))

    @classmethod
    def model_validate_strings(cls, obj: Any, **options: Any) -> Self:
        return _validate_or_raise(cls, partial(super().model_validate_strings, obj, **options))

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
            made = _build_from_valid_fields(given, faults, handler)
        if made is not None:
            wrong = [fault.path for fault in faults]
            found = (fault.with_default_code(cls.fault_code) for fault in made.contradictions())
            faults += [fault for fault in found if not any(map(fault.involves, wrong))]
        if made is None or faults:
            raise _as_validation_error(cls, faults) from None
        return made


def _refuse_change(settings: Settings, name: str) -> NoReturn:
    hint = f"make another {type(settings).__name__} with the value you want"
    raise ConfigurationError(f"{name} cannot be changed: settings are frozen", hint=hint)


def _build_from_valid_fields(
    given: Any, faults: list[Fault], handler: ModelWrapValidatorHandler[Built]
) -> Built | None:
    """What the right values alone would make, so that contradictions among them come to light as well."""
    if not isinstance(given, dict):
        return None
    try:
        return handler(
            drop_paths(
                cast("dict[str, Any]", given), [path for fault in faults for path in (fault.path, *fault.involved)]
            )
        )
    except ValidationError:
        return None


def _as_validation_error(model: type[Settings], faults: list[Fault]) -> ValidationError:
    """Our faults inside the exception that pydantic carries outwards through enclosing models."""
    details = [
        InitErrorDetails(type=PydanticCustomError("fault", "{fault}", {"fault": fault}), loc=fault.path, input=None)
        for fault in faults
    ]
    return ValidationError.from_exception_data(model.__name__, details)


def _validate_or_raise(model: type[Settings], make: Callable[[], Built]) -> Built:
    try:
        return make()
    except ValidationError as invalid:
        faults = faults_in(model, invalid)
    # Outside the handler: pydantic's exception holds the inputs, and with them passwords.
    return _raise_faults(model, faults)


def _raise_faults(model: type[Settings], faults: list[Fault]) -> Any:
    location = SourceLocation.of_caller()
    errors = [fault.as_error(name=format_path(fault.path) or model.__name__, location=location) for fault in faults]
    raise_together(model.__name__, errors)


# Numbers with bounds; True, "5" and NaN are not numbers.

Seconds = Annotated[int, Strict()] | Annotated[float, Strict()]


def between(low: int, high: int) -> Any:
    """A whole number from `low` to `high`, both included."""
    return Field(strict=True, ge=low, le=high)


def at_least(low: int) -> Any:
    return Field(strict=True, ge=low)
