"""Splitting a bulk send into statements."""

from __future__ import annotations

import pytest

from horsies.client.payload import BATCH_CHARACTERS, BATCH_ROWS, batch_slices
from horsies.codec.arguments import EncodedArguments

SHORT = EncodedArguments(args_json="[1]", kwargs_json="{}")
LONG = EncodedArguments(args_json="[" + "1" * (BATCH_CHARACTERS // 2) + "]", kwargs_json="{}")
TOO_LONG = EncodedArguments(args_json="[" + "1" * BATCH_CHARACTERS + "]", kwargs_json="{}")


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        ([], []),
        ([SHORT], [1]),
        ([SHORT] * BATCH_ROWS, [BATCH_ROWS]),
        ([SHORT] * (BATCH_ROWS + 1), [BATCH_ROWS, 1]),
        ([LONG, LONG, SHORT, LONG], [1, 2, 1]),
        ([SHORT, TOO_LONG, SHORT], [1, 1, 1]),
    ],
)
def test_batches_are_limited_by_rows_and_characters(rows: list[EncodedArguments], sizes: list[int]) -> None:
    batches = [rows[span] for span in batch_slices(rows)]
    assert [len(batch) for batch in batches] == sizes
    assert [row for batch in batches for row in batch] == rows
