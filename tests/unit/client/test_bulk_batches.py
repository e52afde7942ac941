"""Splitting a bulk send into statements."""

from __future__ import annotations

import pytest

from horsies import AppConfig, Horsies, TaskError, TaskResult
from horsies.client.payload import DEFAULT_OPTIONS
from horsies.store import tasks
from horsies.store.tasks import batch_slices

BATCH_ROWS, BATCH_CHARACTERS = 3, 100
SHORT, LONG, TOO_LONG = "s", "l" * (BATCH_CHARACTERS // 2), "t" * BATCH_CHARACTERS


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        ([SHORT], [1]),
        ([SHORT] * BATCH_ROWS, [BATCH_ROWS]),
        ([SHORT] * (BATCH_ROWS + 1), [BATCH_ROWS, 1]),
        ([LONG, LONG, SHORT, LONG], [1, 2, 1]),
        ([SHORT, TOO_LONG, SHORT], [1, 1, 1]),
    ],
)
def test_batches_are_limited_by_rows_and_characters(
    words: list[str], sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "BATCH_ROWS", BATCH_ROWS)
    monkeypatch.setattr(tasks, "BATCH_CHARACTERS", BATCH_CHARACTERS)

    @Horsies(AppConfig()).task("say")
    def say(word: str) -> TaskResult[str, TaskError]:
        return TaskResult(ok=word)

    bulk = say.payload_builder.build_many(DEFAULT_OPTIONS, [(word,) for word in words])
    assert bulk is not None
    batches = [bulk.args[rows] for rows in batch_slices(bulk)]
    assert [len(batch) for batch in batches] == sizes
    assert [args for batch in batches for args in batch] == [f'["{word}"]' for word in words]
