from __future__ import annotations

from datetime import datetime
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from horsies_tui.screens.tasks.table import TASK_COLUMNS
from horsies_tui.widgets.row_list import GAP, Cell, Column, place_columns


def _nothing(_: object, __: datetime) -> Cell:
    return Cell("")


_columns = st.lists(
    st.builds(
        Column[object],
        title=st.just("X"),
        width=st.integers(1, 30),
        cell=st.just(_nothing),
        drop_rank=st.integers(0, 5),
        grows=st.integers(0, 3),
    ),
    min_size=1,
    max_size=12,
)


@given(_columns, st.integers(0, 200))
def test_columns_never_overlap_and_never_shrink_below_their_minimum(columns: list[Column[object]], room: int) -> None:
    placed = place_columns(columns, room, indent=3)
    assert placed[0].column is columns[0]
    assert all(each.width >= each.column.width for each in placed)
    assert all(one.x + one.width + GAP == other.x for one, other in pairwise(placed))
    if len(placed) > 1:
        assert placed[-1].x + placed[-1].width <= room


def test_room_that_is_left_over_goes_to_the_columns_that_grow() -> None:
    fixed = Column[object](title="A", width=5, cell=_nothing)
    growing = Column[object](title="B", width=5, cell=_nothing, grows=1)
    assert [each.width for each in place_columns([fixed, growing], 31)] == [5, 25]


def test_eighty_columns_show_what_a_hundred_and_twenty_show_more_of() -> None:
    narrow = {each.column.title for each in place_columns(TASK_COLUMNS, 80, indent=3)}
    wide = {each.column.title for each in place_columns(TASK_COLUMNS, 120, indent=3)}
    assert {"ID", "TASK", "QUEUE", "STATUS", "ATT", "WORKER", "AGE", "ERROR"} == narrow
    assert wide - narrow == {"HB", "WAIT", "PRIO"}
