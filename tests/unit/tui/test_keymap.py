from __future__ import annotations

import pytest

from horsies.errors import ConfigurationError
from horsies_tui.keys import ACTIONS, ACTIONS_BY_ID, build_keymap, key_label


def test_user_key_replaces_default() -> None:
    assert build_keymap({"view.theme": "ctrl+t", "op.fail": "K"}) == {"view.theme": "ctrl+t", "op.fail": "K"}


def test_empty_key_disables_action() -> None:
    assert build_keymap({"op.fail": ""}) == {"op.fail": ""}


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        ({"op.requeue": "/"}, "capital letter"),
        ({"op.requeue": "r"}, "capital letter"),
        ({"op.requeue": "F"}, "op.fail"),
        ({"view.theme": "j"}, "nav.down"),
        ({"op.burn": "B"}, "unknown action"),
    ],
)
def test_colliding_or_unsafe_key_is_rejected(overrides: dict[str, str], fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        build_keymap(overrides)


def test_two_actions_can_swap_keys() -> None:
    assert build_keymap({"op.fail": "X", "op.expire": "F"}) == {"op.fail": "X", "op.expire": "F"}


def test_default_keys_do_not_collide() -> None:
    assert build_keymap({action.id: ",".join(action.keys) for action in ACTIONS})


def test_exactly_mutating_actions_use_capital_letters() -> None:
    capitals = {action.id for action in ACTIONS if any(len(key) == 1 and key.isupper() for key in action.keys)}
    assert {action.id for action in ACTIONS if action.mutates} == capitals - {"nav.bottom", "copy.json", "find.prev"}


def test_actions_have_unique_ids_help_and_scopes() -> None:
    assert len(ACTIONS_BY_ID) == len(ACTIONS)
    assert all(action.help and action.scopes for action in ACTIONS)


def test_key_labels_are_readable() -> None:
    assert [key_label(key) for key in ("ctrl+a", "space", "question_mark", "R")] == ["^a", "space", "?", "R"]
