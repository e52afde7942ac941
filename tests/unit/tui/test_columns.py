from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from horsies_tui.screens.tasks.table import TASK_COLUMNS
from horsies_tui.widgets.row_list import GAP, Column, place_columns

_columns = st.lists(
    st.builds(
        Column[object],
        title=st.just("X"),
        width=st.integers(1, 30),
        drop_rank=st.integers(0, 5),
        grows=st.integers(0, 3),
    ),
    min_size=1,
    max_size=12,
)


@given(_columns, st.integers(0, 200))
def test_columns_neither_overlap_nor_shrink_below_minimum(columns: list[Column[object]], width: int) -> None:
    placed = place_columns(columns, width, indent=3)
    assert placed[0].column is columns[0]
    assert all(place.width >= place.column.width for place in placed)
    assert all(left.x + left.width + GAP == right.x for left, right in pairwise(placed))
    if len(placed) > 1:
        assert placed[-1].x + placed[-1].width <= width


def test_spare_width_goes_to_growing_columns() -> None:
    fixed = Column[object]("A", 5)
    growing = Column[object]("B", 5, grows=1)
    assert [place.width for place in place_columns([fixed, growing], 31)] == [5, 25]


def test_wider_terminal_shows_more_task_columns() -> None:
    narrow = {place.column.title for place in place_columns(TASK_COLUMNS, 80, indent=3)}
    wide = {place.column.title for place in place_columns(TASK_COLUMNS, 120, indent=3)}
    assert {"ID", "TASK", "QUEUE", "STATUS", "ATT", "WORKER", "AGE", "ERROR"} == narrow
    assert wide - narrow == {"HB", "WAIT", "PRIO"}
