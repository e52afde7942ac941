"""Positional arguments get the names of their parameters, so that secrets are masked by name."""

from __future__ import annotations

import json
from uuid import UUID

from horsies.model.text import mask_values
from horsies_ops.reads.tasks import PayloadPreview, name_arguments


def _parameters(**kinds: str) -> str:
    """The stored parameters, in another order than that of the signature."""
    stored = {name: {"position": index, "kind": kind} for index, (name, kind) in enumerate(kinds.items())}
    return json.dumps(dict(reversed(stored.items())))


LOGIN = _parameters(user="positional_or_keyword", password="positional_or_keyword", note="keyword_only")


def test_arguments_are_named_in_order_of_the_signature() -> None:
    assert name_arguments(["ada", "hunter2"], LOGIN) == {"user": "ada", "password": "hunter2"}


def test_surplus_arguments_have_the_name_of_the_variadic_parameter() -> None:
    stored = _parameters(user="positional_only", tokens="var_positional")
    assert name_arguments(["ada", "t1", "t2"], stored) == {"user": "ada", "tokens[0]": "t1", "tokens[1]": "t2"}


def test_unregistered_task_has_arguments_without_names() -> None:
    assert name_arguments([1, 2], None) == {"args": [1, 2]}
    assert name_arguments([], None) == {}


def test_all_are_masked_if_positions_are_unknown_and_one_parameter_is_secret() -> None:
    stored = json.dumps({"password": {"kind": "positional_or_keyword"}, "user": {"kind": "positional_or_keyword"}})
    masked = mask_values(name_arguments(["ada", "hunter2"], stored), ["password"])
    assert set(masked.values()) == {"***"}
    assert len(masked) == 2


def test_name_given_twice_hides_no_value() -> None:
    payload = PayloadPreview(
        id=UUID(int=1), size=9, args_json='["ada", "x"]', kwargs_json='{"password": "y"}', parameters_json=LOGIN
    )
    assert payload.arguments == {"user": "ada", "password (positional)": "x", "password": "y"}
