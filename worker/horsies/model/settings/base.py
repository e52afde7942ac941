"""Base class of all settings: frozen, no unknown names, and error messages without pydantic's wording."""

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
    LiteralString,
    NoReturn,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    StrictFloat,
    StrictInt,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from horsies.errors import ConfigurationError, ErrorCode, SourceLocation, raise_together
from horsies.model.result import Err, Ok, Result
from horsies.model.text import format_path

SettingPath: TypeAlias = tuple[str | int, ...]

# Faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing wrong with a setting: `path` is the setting, `involved` are all settings that the rule reads.

    Paths are relative to the validated model. Without a `code`, the model's `fault_code` applies.
    """

    path: SettingPath
    text: str
    code: ErrorCode | None = None
    hint: str | None = None
    involved: tuple[SettingPath, ...] = ()

    @classmethod
    def between(cls, *names: str, text: str, code: ErrorCode | None = None, hint: str | None = None) -> Fault:
        """Return the fault of settings that contradict each other, as dotted names; it is reported for the first."""
        paths = tuple(tuple(name.split(".")) for name in names)
        return cls(path=paths[0], text=text, code=code, hint=hint, involved=paths)

    def involves(self, path: SettingPath) -> bool:
        """Whether the rule reads the setting at `path`, a part of it, or the group that contains it."""
        return any(known[: len(path)] == path[: len(known)] for known in self.involved)

    def with_parent(self, parent: SettingPath) -> Fault:
        return replace(self, path=parent + self.path, involved=tuple(parent + path for path in self.involved))

    def with_default_code(self, code: ErrorCode | None) -> Fault:
        return self if self.code is not None else replace(self, code=code)

    def as_error(
        self, *, name: str | None = None, source: str = "", location: SourceLocation | None = None
    ) -> ConfigurationError:
        """Convert to the error that users see; `source` names where the value came from, if not from code."""
        prefix = f"{source}: " if source else ""
        message = f"{prefix}{name or format_path(self.path)}: {self.text}"
        return ConfigurationError(message, code=self.code, hint=self.hint, location=location)


# Descriptions of a field, derived from its annotation, limits, default and description

LONGEST_SHOWN = 40

Seconds = StrictInt | StrictFloat


@dataclass(frozen=True, slots=True)
class RuleText:
    """Describes the valid values of a field that a function or a pattern checks."""

    text: str


def describe_rule(field: FieldInfo) -> str:
    """Describe valid values, to follow "must be"."""
    kinds = union_members(field.annotation)
    rule_text = next((item.text for item in field.metadata if isinstance(item, RuleText)), None)
    text = rule_text or _describe_type(float if float in kinds else kinds[0]) + _describe_limits(field)
    return f"{text}, or none" if type(None) in kinds else text


def describe_meaning(field: FieldInfo) -> str | None:
    """Return the description of a field and its default, which may be part of the description."""
    if field.description is None or field.is_required() or "default: " in field.description:
        return field.description
    default = field.get_default(call_default_factory=True)
    return f"{field.description}; default: {json.dumps(default, default=str)}"


def union_members(annotation: Any) -> tuple[Any, ...]:
    """Return the types a value may have, without constraints; None is given as `NoneType`."""
    is_union = get_origin(annotation) in (Union, types.UnionType)
    found = get_args(annotation) if is_union else (annotation,)
    return tuple(get_args(member)[0] if get_origin(member) is Annotated else member for member in found)


def format_given(value: object) -> str:
    """Return `, got …` for values that cannot contain a secret, else an empty string."""
    if isinstance(value, bool | int | float | Enum) or value is None:
        return f", got {value}"
    if isinstance(value, str) and len(value) <= LONGEST_SHOWN and not set("@=:") & set(value):
        return f", got {value!r}"
    return ""


def describe_unknown_key(name: str, known: Iterable[str]) -> tuple[str, str | None]:
    """Return message and hint for an unknown key: the closest known key, or all of them as a hint."""
    names = sorted(known)
    if near := difflib.get_close_matches(name, names, n=1):
        return f"unknown key, did you mean {near[0]}?", None
    return "unknown key", "valid keys: " + ", ".join(names)


def _describe_type(annotation: Any) -> str:
    origin = get_origin(annotation) or annotation
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(annotation))
    if issubclass(origin, Enum):
        return "one of " + ", ".join(str(choice.value) for choice in origin)
    items = " of strings" if str in get_args(annotation)[-1:] else ""
    for known, name in _TYPE_NAMES.items():
        if issubclass(origin, known):
            return name + items
    return "a table of settings"


# The order matters: a bool is an int and a str is a Sequence.
_TYPE_NAMES: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number of seconds",  # see `Seconds`
    str: "text",
    Sequence: "a list",
    Mapping: "a table",
}


_LIMITS = ("ge", "gt", "le", "min_length", "max_length")


def _describe_limits(field: FieldInfo) -> str:
    match {name: getattr(item, name) for item in field.metadata for name in _LIMITS if hasattr(item, name)}:
        case {"ge": low, "le": high}:
            return f" from {low} to {high}"
        case {"ge": low}:
            return f" of at least {low}"
        case {"gt": low}:
            return f" above {low}"
        case {"min_length": low, "max_length": high}:
            return f" of {low} to {high} characters"
        case {"min_length": _}:
            return ", not empty"
        case _:
            return ""


# Conversion of pydantic's errors to faults

_FAULTS: LiteralString = "faults"


def faults_in(model: type[Settings], invalid: ValidationError) -> list[Fault]:
    """Convert a pydantic error to one fault per invalid setting, in pydantic's order."""
    # Pydantic reports an invalid value once per member of a union, and every invalid item of a list.
    found = (fault for error in invalid.errors(include_url=False) for fault in _faults(model, error))
    return list(dict.fromkeys(found))


def unknown_key_fault(model: type[Settings], path: SettingPath) -> Fault:
    """The fault of an unknown setting; names where it belongs, or the closest known setting."""
    name = str(path[-1])
    if place := model.misplaced_keys.get(name):
        return misplaced_key_fault(path, place, code=model.fault_code)
    text, hint = describe_unknown_key(name, model.model_fields)
    return Fault(path=path, text=text, code=ErrorCode.CONFIG_UNKNOWN_KEY, hint=hint)


def misplaced_key_fault(path: SettingPath, place: str, *, code: ErrorCode | None = None) -> Fault:
    return Fault(path=path, text="does not belong here", code=code or ErrorCode.CONFIG_UNKNOWN_KEY, hint=f"use {place}")


def drop_paths(given: dict[str, Any], paths: Iterable[SettingPath]) -> dict[str, Any]:
    """Copy without the settings at `paths`; a path into a list drops the whole list."""
    kept = dict(given)
    for name, *rest in paths:
        inner = kept.get(str(name))
        if rest and isinstance(inner, dict):
            kept[str(name)] = drop_paths(cast("dict[str, Any]", inner), [tuple(rest)])
        else:
            kept.pop(str(name), None)
    return kept


def _faults(model: type[Settings], error: ErrorDetails) -> Iterator[Fault]:
    path, context = error["loc"], error.get("ctx", {})
    if error["type"] == _FAULTS:  # raised by `_collect` of this model or of a nested one
        yield from (fault.with_parent(path) for fault in context["faults"])
    elif not path:
        yield Fault(path=(), text="must be a table of settings", code=model.fault_code)
    elif error["type"] == "extra_forbidden":
        yield unknown_key_fault(model, path)
    else:
        field = model.model_fields[str(path[0])]
        text, hint = _field_message(error, field, context.get("error"))
        field_code = next((item for item in field.metadata if isinstance(item, ErrorCode)), None)
        yield Fault(path=path[:1], text=text, hint=hint, code=field_code or model.fault_code)


def _field_message(error: ErrorDetails, field: FieldInfo, cause: object) -> tuple[str, str | None]:
    if error["type"] == "missing":
        return f"is required: {describe_rule(field)}", None
    if isinstance(cause, ConfigurationError):
        return cause.message, cause.help_text
    got = format_given(error["input"]) if len(error["loc"]) == 1 else ""
    return f"must be {describe_rule(field)}{got}", describe_meaning(field)


# Settings


Built = TypeVar("Built")


class Settings(BaseModel):
    """A frozen group of settings.

    Invalid settings raise one `ConfigurationError` with all faults: unknown names, invalid values, and contradictions
    between the valid values.
    """

    # The validator of a model is built when it is first used: most commands use only a few of them.
    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False, defer_build=True
    )

    fault_code: ClassVar[ErrorCode | None] = None
    misplaced_keys: ClassVar[Mapping[str, str]] = {}
    """Keys that users may look for here, and where to set them instead."""

    def __init__(self, /, **given: Any) -> None:
        _validate_or_raise(type(self), partial(super().__init__, **given))

    # Pydantic then does not call __init__ for nested models, where their faults would be raised without the full path.
    __init__.__pydantic_base_init__ = True  # pyright: ignore[reportFunctionMemberAccess]

    def contradictions(self) -> Iterator[Fault]:
        """Yield a fault for each violated rule between settings."""
        yield from ()

    @classmethod
    def try_validate(cls, given: Mapping[str, Any]) -> Result[Self, list[Fault]]:
        """Return the settings, or all their faults."""
        try:
            return Ok(super().model_validate(given))
        except ValidationError as invalid:
            return Err(faults_in(cls, invalid))

    @classmethod
    def unchecked(cls, **given: Any) -> Self:
        """Create settings without checking ranges and contradictions, for tests that need shorter times."""
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
            return given  # checked when it was created, or left unchecked on purpose
        try:
            settings, faults = handler(given), list[Fault]()
        except ValidationError as invalid:
            faults = faults_in(cls, invalid)
            settings = _build_from_valid_fields(given, faults, handler)
        if settings is not None:
            invalid_paths = [fault.path for fault in faults]
            found = (fault.with_default_code(cls.fault_code) for fault in settings.contradictions())
            # An invalid setting was replaced by its default: contradictions with that would mislead.
            faults += [fault for fault in found if not any(map(fault.involves, invalid_paths))]
        if settings is None or faults:
            # Pydantic passes it on through the enclosing models and adds the path of this one.
            raise PydanticCustomError(_FAULTS, "invalid settings", {"faults": faults}) from None
        return settings


def _refuse_change(settings: Settings, name: str) -> NoReturn:
    hint = f"create a new {type(settings).__name__} with the value you want"
    raise ConfigurationError(f"{name} cannot be changed: settings are frozen", hint=hint)


def _build_from_valid_fields(
    given: Any, faults: list[Fault], handler: ModelWrapValidatorHandler[Built]
) -> Built | None:
    """Build settings from the valid values alone, so that contradictions among them can be reported too."""
    if not isinstance(given, dict):
        return None
    invalid_paths = [path for fault in faults for path in (fault.path, *fault.involved)]
    try:
        return handler(drop_paths(cast("dict[str, Any]", given), invalid_paths))
    except ValidationError:
        return None


def _validate_or_raise(model: type[Settings], make: Callable[[], Built]) -> Built:
    try:
        return make()
    except ValidationError as invalid:
        faults = faults_in(model, invalid)
    # Raise outside the except block: pydantic's exception, kept as __context__, would contain inputs with passwords.
    return _raise_faults(model, faults)


def _raise_faults(model: type[Settings], faults: list[Fault]) -> Any:
    location = SourceLocation.of_caller()
    errors = [fault.as_error(name=format_path(fault.path) or model.__name__, location=location) for fault in faults]
    raise_together(model.__name__, errors)
