from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from horsies_tui.widgets.row_list import RowSelection

_rows = st.lists(st.integers(0, 30), unique=True, max_size=20)


def _selection_of(keys: list[int]) -> RowSelection[int]:
    selection: RowSelection[int] = RowSelection()
    selection.set_keys(keys)
    return selection


@given(_rows, _rows, st.integers(0, 30))
def test_cursor_stays_on_its_row_when_rows_move(before: list[int], after: list[int], index: int) -> None:
    selection = _selection_of(before)
    selection.move_to(index)
    row = selection.cursor
    selection.set_keys(after)
    if row in after:
        assert selection.cursor == row
        assert selection.keys[selection.cursor_index] == row
    else:
        assert selection.cursor in after or not after


@given(_rows, st.lists(_rows))
def test_marks_survive_any_change_of_rows(first: list[int], later: list[list[int]]) -> None:
    selection = _selection_of(first)
    selection.mark_all()
    for rows in later:
        selection.set_keys(rows)
    assert selection.marks == set(first)
    assert set(selection.selected) == set(first) or not first


def test_cursor_moves_to_same_index_if_row_is_gone() -> None:
    selection = _selection_of([1, 2, 3])
    selection.move_to(1)
    selection.set_keys([1, 3])
    assert selection.cursor == 3


def test_selection_without_marks_is_cursor_row() -> None:
    selection = _selection_of([1, 2, 3])
    selection.move_to(2)
    assert selection.selected == (3,)
    selection.toggle()
    selection.move_to(0)
    assert selection.selected == (3,)


def test_range_marks_all_rows_between_both_ends() -> None:
    selection = _selection_of([1, 2, 3, 4])
    selection.move_to(3)
    selection.mark_range()
    selection.move_to(1)
    selection.mark_range()
    assert selection.marks == {2, 3, 4}


def test_unmark_keeps_other_marks() -> None:
    selection = _selection_of([1, 2, 3])
    selection.mark_all()
    selection.unmark([1, 3])
    assert selection.marks == {2}
