from __future__ import annotations

import pytest

from horsies.errors import ConfigurationError
from horsies_tui.keys import ACTIONS, ACTIONS_BY_ID, Place, build_keymap, key_label


def test_a_key_of_the_users_own_takes_the_place_of_ours() -> None:
    assert build_keymap({"view.theme": "ctrl+t", "op.fail": "K"}) == {"view.theme": "ctrl+t", "op.fail": "K"}


def test_an_empty_text_switches_an_action_off() -> None:
    assert build_keymap({"op.fail": ""}) == {"op.fail": ""}


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"op.requeue": "/"}, "capital letter"),
        ({"op.requeue": "r"}, "capital letter"),
        ({"op.requeue": "F"}, "op.fail"),
        ({"view.theme": "j"}, "nav.down"),
        ({"op.burn": "B"}, "unknown action"),
    ],
)
def test_a_key_that_would_do_harm_or_collide_is_refused(wanted: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        build_keymap(wanted)


def test_two_actions_may_change_keys() -> None:
    assert build_keymap({"op.fail": "X", "op.expire": "F"}) == {"op.fail": "X", "op.expire": "F"}


def test_the_keys_that_we_ship_collide_nowhere() -> None:
    assert build_keymap({action.id: ",".join(action.keys) for action in ACTIONS})


def test_what_changes_the_database_is_a_capital_letter_and_nothing_else_is() -> None:
    capitals = {action.id for action in ACTIONS if any(len(key) == 1 and key.isupper() for key in action.keys)}
    assert {action.id for action in ACTIONS if action.mutates} == capitals - {"nav.bottom", "copy.json", "find.prev"}


def test_an_action_has_an_id_of_its_own_and_an_explanation() -> None:
    assert len(ACTIONS_BY_ID) == len(ACTIONS)
    assert all(action.help and action.places for action in ACTIONS)
    assert all(action.label for action in ACTIONS if action.is_in_footer)
    assert all(isinstance(place, Place) for action in ACTIONS for place in action.places)


def test_keys_are_shown_as_people_write_them() -> None:
    assert [key_label(key) for key in ("ctrl+a", "space", "question_mark", "R")] == ["^a", "space", "?", "R"]
