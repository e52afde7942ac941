from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from horsies.errors import BrokerErrorCode, HorsiesError
from horsies.model.result import BrokerOperationError, Err, Ok, Result, UnwrapError, is_err, is_ok


def parse(text: str) -> Result[int, str]:
    return Ok(int(text)) if text.isdigit() else Err(f"no number: {text}")


def test_ok_holds_its_value() -> None:
    found = parse("5")

    assert found.is_ok()
    assert not found.is_err()
    assert (found.ok(), found.err()) == (5, None)
    assert found.ok_value == found.unwrap() == found.expect("a number") == 5


def test_err_holds_its_error() -> None:
    found = parse("x")

    assert found.is_err()
    assert not found.is_ok()
    assert (found.ok(), found.err()) == (None, "no number: x")
    assert found.err_value == found.unwrap_err() == found.expect_err("no number") == "no number: x"


def test_guards_distinguish_ok_and_err() -> None:
    assert is_ok(parse("5"))
    assert not is_err(parse("5"))
    assert is_err(parse("x"))
    assert not is_ok(parse("x"))


def test_results_can_be_matched() -> None:
    match parse("5"):
        case Ok(value):
            assert value == 5
        case Err(error):
            pytest.fail(error)


def test_unwrapping_an_err_raises_with_its_error() -> None:
    found = parse("x")

    with pytest.raises(UnwrapError, match="no number: x") as caught:
        found.unwrap()
    assert caught.value.result == Err("no number: x")
    assert isinstance(caught.value, HorsiesError)
    with pytest.raises(UnwrapError):
        _ = found.ok_value
    with pytest.raises(UnwrapError, match="need a number: 'no number: x'"):
        found.expect("need a number")


def test_reading_the_error_of_an_ok_raises() -> None:
    found = parse("5")

    with pytest.raises(UnwrapError):
        found.unwrap_err()
    with pytest.raises(UnwrapError):
        _ = found.err_value
    with pytest.raises(UnwrapError, match="should have failed"):
        found.expect_err("should have failed")


@pytest.mark.parametrize(("text", "expected"), [("5", 5), ("x", 0)])
def test_unwrap_or_returns_the_default_for_an_error(text: str, expected: int) -> None:
    assert parse(text).unwrap_or(0) == expected
    assert parse(text).unwrap_or_else(lambda _: 0) == expected


def test_unwrap_or_raise_raises_the_given_exception() -> None:
    assert parse("5").unwrap_or_raise(KeyError) == 5
    with pytest.raises(KeyError, match="no number: x"):
        parse("x").unwrap_or_raise(KeyError)


def test_map_and_map_err() -> None:
    assert parse("5").map(str) == Ok("5")
    assert parse("x").map(str) == Err("no number: x")
    assert parse("5").map_err(len) == Ok(5)
    assert parse("x").map_err(len) == Err(12)


def test_map_or_and_map_or_else() -> None:
    assert parse("5").map_or("none", str) == "5"
    assert parse("x").map_or("none", str) == "none"
    assert parse("5").map_or_else(lambda: "none", str) == "5"
    assert parse("x").map_or_else(lambda: "none", str) == "none"


def test_and_then_and_or_else() -> None:
    assert parse("5").and_then(lambda number: parse(str(number + 1))) == Ok(6)
    assert parse("x").and_then(lambda number: parse(str(number + 1))) == Err("no number: x")
    assert parse("5").or_else(lambda _: parse("0")) == Ok(5)
    assert parse("x").or_else(lambda _: parse("0")) == Ok(0)


def test_inspect_and_inspect_err() -> None:
    seen: list[object] = []

    assert parse("5").inspect(seen.append).inspect_err(seen.append) == Ok(5)
    assert parse("x").inspect(seen.append).inspect_err(seen.append) == Err("no number: x")
    assert seen == [5, "no number: x"]


def test_results_are_frozen_and_equal_by_value() -> None:
    assert {Ok(5), Ok(5), Err(5)} == {Ok(5), Err(5)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        Ok(5).value = 6  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("other", [None, 5, "ok", HorsiesError("failed")])
def test_guards_reject_what_is_not_a_result(other: Any) -> None:
    for guard in (is_ok, is_err):
        with pytest.raises(TypeError, match=f"expected Ok or Err, got {type(other).__qualname__}"):
            guard(other)


def test_unwrap_error_has_the_exception_as_its_cause() -> None:
    cause = OSError("disk full")
    error = BrokerOperationError(code=BrokerErrorCode.NO_BROKER, message="failed", exception=cause)
    for result in (Err(cause), Err(error)):
        with pytest.raises(UnwrapError) as raised:
            result.unwrap()
        assert raised.value.__cause__ is cause
    with pytest.raises(UnwrapError) as raised:
        parse("x").unwrap()
    assert raised.value.__cause__ is None
