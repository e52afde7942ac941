# pyright: reportReturnType=false
# The functions are only used for their signatures.

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field, JsonValue, SecretStr, field_serializer, field_validator
from pydantic_core import PydanticCustomError

from horsies.codec.arguments import TaskCodec
from horsies.codec.canonical_json import PayloadError
from horsies.errors import ErrorCode
from horsies.model.task_result import TaskError, TaskResult

if TYPE_CHECKING:
    from decimal import Decimal as Missing  # absent at run time on purpose

Done = TaskResult[None, TaskError]
WRONG_DEFAULT: Any = "98765432x"


class Opaque:
    pass


class Loose(BaseModel):
    anything: Any


class Unfinished(BaseModel):
    part: Missing


class Login(BaseModel):
    user: str
    password: SecretStr


class Revealed(Login):
    @field_serializer("password", when_used="json")
    def _reveal(self, password: SecretStr) -> str:
        return password.get_secret_value()


class Secret(BaseModel):
    pin: int
    notes: dict[str, int] = {}

    @field_validator("pin")
    @classmethod
    def _check_pin(cls, pin: int) -> int:
        if pin > 9999:
            raise ValueError(f"{pin} is too long")
        return pin


class Line(BaseModel, extra="forbid"):
    quantity: Annotated[int, Field(ge=1)]


class Order(BaseModel):
    lines: list[Line]
    notes: dict[str, int] = {}


def quote_value(value: int) -> int:
    raise PydanticCustomError("greater_than_equal", "{value} is too small", {"value": value})


def spread(a: int, b: int = 2, *, c: int = 3) -> Done: ...
def typed(number: int, text: str = "x") -> Done: ...
def collecting(first: int, /, *rest: int, flag: bool = False, **extra: str) -> Done: ...
def guarded(secret: Secret) -> Done: ...
def ordering(order: Order) -> Done: ...
def custom_error(value: Annotated[int, AfterValidator(quote_value)]) -> Done: ...
def wrong_defaults(count: int = WRONG_DEFAULT, order: Order = WRONG_DEFAULT, *, text: str = "x") -> Done: ...
def anything(value: Any) -> Done: ...
def loose(value: Loose) -> Done: ...
def json_only(value: JsonValue) -> Done: ...
def invalid(known: int, undefined: Missing, opaque: Opaque) -> TaskResult[int, str]: ...
def login(value: Login) -> Done: ...
def revealed(value: Revealed) -> Done: ...
def unfinished(value: Unfinished) -> Done: ...
def later(value: Later) -> Done: ...


class Later(BaseModel):
    day: int


def plain(value: object) -> Done: ...
def undeclared() -> None: ...


# Annotations removed at run time; the type checker requires them above.
del plain.__annotations__["value"]
del undeclared.__annotations__["return"]


def codec_of(function: Callable[..., object]) -> TaskCodec:
    return TaskCodec.of(function).unwrap()


def encode_error(function: Callable[..., object], *args: object, **kwargs: object) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        codec_of(function).encode(args, kwargs)
    return caught.value


def nested(levels: int) -> list[Any]:
    return functools.reduce(lambda inner, _: [inner], range(levels - 1), list[Any]())


def test_positional_and_keyword_arguments_are_stored_separately() -> None:
    encoded = codec_of(collecting).encode((1, "2", 3), {"flag": "yes", "note": "n"})

    assert (encoded.args_json, encoded.kwargs_json) == ("[1,2,3]", '{"flag":true,"note":"n"}')
    assert (encoded.args, encoded.kwargs) == ([1, 2, 3], {"flag": True, "note": "n"})
    assert encoded.size_bytes == len("[1,2,3]") + len('{"flag":true,"note":"n"}')


def test_arguments_are_decoded_to_their_types() -> None:
    codec = codec_of(guarded)
    encoded = codec.encode((), {"secret": Secret(pin=1234)})

    call = codec.decode(encoded.args_json.encode(), encoded.kwargs_json.encode())

    assert (call.args, call.kwargs) == ((), {"secret": Secret(pin=1234)})


def test_defaults_are_not_stored() -> None:
    encoded = codec_of(typed).encode((5,), {})

    assert (encoded.args_json, encoded.kwargs_json) == ("[5]", "{}")


def test_lax_mode_converts_text_to_numbers() -> None:
    assert codec_of(typed).encode(("5",), {}).args == [5]


@pytest.mark.parametrize(
    ("args", "kwargs", "parameter", "reason"),
    [
        ((), {}, "number", "missing"),
        ((1,), {"number": 2}, "number", "given twice"),
        ((1,), {"colour": 2}, "colour", "unknown"),
        ((1, "x", 3), {}, None, "3 positional arguments given, but the task takes at most 2"),
        (("five",), {}, "number", "must be a whole number"),
        ((1,), {"text": 5}, "text", "must be text"),
    ],
)
def test_invalid_call_names_the_parameter(
    args: tuple[object, ...], kwargs: dict[str, object], parameter: str | None, reason: str
) -> None:
    error = encode_error(typed, *args, **kwargs)

    assert error.parameter == parameter
    assert reason in error.reason
    assert str(parameter or "") in str(error)


@pytest.mark.parametrize("function", [spread, typed, collecting, guarded])
@pytest.mark.parametrize(("empty_args", "empty_kwargs"), [("[]", "{}"), (b"[]", b"{}")])
def test_empty_arguments_decode_like_any_others(
    function: Callable[..., object], empty_args: str | bytes, empty_kwargs: str | bytes
) -> None:
    def decode(args: str | bytes, kwargs: str | bytes) -> object:
        try:
            return codec_of(function).decode(args, kwargs)
        except PayloadError as error:
            return str(error)

    # White space takes the general path.
    assert decode(empty_args, empty_kwargs) == decode("[ ]", "{ }")


@given(
    count=st.integers(0, 4),
    keywords=st.sets(st.sampled_from(["a", "b", "c", "first", "rest", "flag", "extra", "other"])),
    function=st.sampled_from([spread, typed, collecting, guarded]),
)
def test_binding_agrees_with_python(count: int, keywords: set[str], function: Callable[..., object]) -> None:
    kwargs = dict.fromkeys(keywords)
    try:
        function(*[None] * count, **kwargs)
    except TypeError:
        with pytest.raises(PayloadError):
            codec_of(function).signature.check_call(count, kwargs)
    else:
        codec_of(function).signature.check_call(count, kwargs)


@pytest.mark.parametrize(
    "value",
    [math.nan, "\0", "\ud800", {1: 2}, (1,), {1}, b"", object(), nested(257)],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("function", [plain, json_only])
def test_unannotated_parameters_accept_only_plain_json(function: Callable[..., object], value: object) -> None:
    assert encode_error(function, value).parameter == "value"


@pytest.mark.parametrize(
    "value",
    [math.inf, Loose(anything=math.nan), ["\0"], {"\ud800": 1}, object(), nested(257)],
    ids=lambda value: type(value).__name__,
)
def test_annotated_parameters_reject_unstorable_values(value: object) -> None:
    assert encode_error(anything, value).parameter == "value"


def test_cyclic_value_is_rejected() -> None:
    value: list[Any] = []
    value.append(value)

    assert encode_error(plain, value).parameter == "value"
    assert encode_error(anything, value).parameter == "value"


def test_secret_is_rejected_unless_its_model_reveals_it() -> None:
    assert "mask" in encode_error(login, Login(user="ada", password=SecretStr("hunter2"))).reason
    encoded = codec_of(revealed).encode((Revealed(user="ada", password=SecretStr("hunter2")),), {})
    assert encoded.args == [{"user": "ada", "password": "hunter2"}]


def test_names_in_var_keywords_must_be_storable() -> None:
    assert encode_error(collecting, 1, **{"a\0b": "x"}).parameter == "extra"


def test_keyword_names_must_be_strings() -> None:
    wrong: Any = {1: "x"}
    for function in (typed, collecting):
        with pytest.raises(PayloadError, match="keyword names must be strings"):
            codec_of(function).encode((1,), wrong)


@pytest.mark.parametrize("function", [typed, plain, anything])
def test_number_with_too_many_digits_is_rejected(function: Callable[..., object]) -> None:
    error = encode_error(function, 10**5000)

    assert error.parameter == ("number" if function is typed else "value")
    assert "more than 4300 digits" in error.reason


@pytest.mark.parametrize("function", [plain, json_only])
def test_256_levels_round_trip(function: Callable[..., object]) -> None:
    codec = codec_of(function)
    encoded = codec.encode((nested(256),), {})

    assert codec.decode(encoded.args_json, encoded.kwargs_json).args == (nested(256),)


@pytest.mark.parametrize(
    "value", [{"pin": "9876543x"}, {"pin": 98765432}, {"pin": 1, "notes": {"98765432": "x"}}, "98765432"]
)
def test_errors_never_show_the_value(value: object) -> None:
    assert "98765432" not in str(encode_error(guarded, value))


def test_error_lists_every_fault_with_its_path() -> None:
    error = encode_error(ordering, {"lines": [{"quantity": 0}, {"colour": "red"}], "notes": {"private": "y"}})

    assert error.parameter == "order"
    assert error.reason.split("; ") == [
        "lines[0].quantity: must be at least 1",
        "lines[1].quantity: is missing",
        "lines[1].*: is unknown",
        "notes.*: must be a whole number",
    ]


def test_error_lists_five_faults_and_counts_the_rest() -> None:
    error = encode_error(ordering, {"lines": [{"quantity": 0}] * 8})

    assert error.reason.count("must be at least 1") == 5
    assert error.reason.endswith("; and 3 more")


def test_custom_error_with_pydantic_type_hides_its_message() -> None:
    assert encode_error(custom_error, 98765432).reason == "must be at least …"


@pytest.mark.parametrize(
    ("args_json", "kwargs_json"),
    [
        ("[", "{}"),
        ("{}", "{}"),
        ("[]", "[]"),
        ("[]", "{}"),
        ('["x"]', "{}"),
        ("[1]", '{"gone": 1}'),
        ("[" * 9999, "{}"),
    ],
)
def test_corrupt_stored_arguments_are_rejected(args_json: str, kwargs_json: str) -> None:
    with pytest.raises(PayloadError):
        codec_of(typed).decode(args_json, kwargs_json)


def test_255_levels_round_trip_as_any() -> None:
    codec = codec_of(anything)
    encoded = codec.encode((), {"value": nested(255)})

    assert codec.decode(encoded.args_json, encoded.kwargs_json).kwargs == {"value": nested(255)}


def test_model_depth_is_limited_by_the_parser() -> None:
    codec, deep = codec_of(loose), Loose(anything=nested(199))
    encoded = codec.encode((deep,), {})

    assert codec.decode(encoded.args_json, encoded.kwargs_json).args == (deep,)
    assert "more than 200 levels" in encode_error(loose, Loose(anything=nested(200))).reason


def test_equal_sets_are_encoded_equally() -> None:
    one, other = {"ab": {"x", "y"}}, {"ab": {"y", "x"}}

    assert codec_of(anything).encode((one,), {}) == codec_of(anything).encode((other,), {})
    assert codec_of(anything).encode((one,), {}).args == [{"ab": ["x", "y"]}]


def test_forward_reference_to_a_later_class_is_resolved() -> None:
    assert codec_of(later).encode(({"day": "3"},), {}).args == [{"day": 3}]


def test_all_faults_of_a_signature_are_reported_together() -> None:
    faults = TaskCodec.of(invalid).unwrap_err()

    assert [(fault.code, fault.parameter) for fault in faults] == [
        (ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION, "undefined"),
        (ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION, "opaque"),
        (ErrorCode.TASK_INVALID_RETURN_TYPE, None),
    ]
    assert faults[0].reason == "name 'Missing' is not defined"
    assert faults[1].reason.startswith("Opaque cannot be stored as JSON")
    assert faults[2].reason == "must return TaskResult[T, TaskError], but returns TaskResult[int, str]"
    assert [fault.hint.partition(",")[0] for fault in faults] == [
        "define the class above the task",
        "use plain types",
        "declare the return type",
    ]


def test_default_that_violates_its_annotation_is_a_fault() -> None:
    faults = TaskCodec.of(wrong_defaults).unwrap_err()

    assert [(fault.code, fault.parameter) for fault in faults] == [
        (ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION, "count"),
        (ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION, "order"),
    ]
    assert faults[0].reason == "its default does not match its annotation: must be a whole number"
    assert "98765432" not in faults[1].reason


def test_model_with_undefined_class_gives_a_hint() -> None:
    (fault,) = TaskCodec.of(unfinished).unwrap_err()

    assert (fault.parameter, fault.hint) == ("value", "define the class above the task")


def test_return_type_must_be_declared() -> None:
    (fault,) = TaskCodec.of(undeclared).unwrap_err()

    assert fault.code is ErrorCode.TASK_NO_RETURN_TYPE


def test_wrapped_function_uses_its_own_signature() -> None:
    @functools.wraps(typed)
    def wrapper(*args: Any, **kwargs: Any) -> Any: ...

    assert encode_error(wrapper).parameter == "number"
