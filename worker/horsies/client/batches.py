"""A bulk send, cut into statements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.codec.instants import in_utc
from horsies.store.tasks import Batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horsies.client.pattern import Bulk
    from horsies.codec.task import EncodedArguments

BATCH_ROWS = 1000
BATCH_CHARACTERS = 32_000_000
"""Text of a statement; much more would be held in memory by both sides several times over."""


class Batches:
    """The batches of a bulk send, each made when its turn comes; they can be gone through again."""

    def __init__(self, bulk: Bulk) -> None:
        self.bulk = bulk
        self.are_begun = False
        """Whether any of them may have reached the server; before that, nothing can be stored."""
        self.may_be_stored = False
        """Whether the answer to one of the tries was lost: no later one tells what came of that."""

    def __iter__(self) -> Iterator[Batch]:
        self.are_begun = True
        bulk, like = self.bulk, self.bulk[0]
        sent_at = in_utc(bulk.sent_at)
        for span in spans(bulk.arguments):
            rows = bulk.arguments[span]
            yield Batch(
                like=like,
                ids="\n".join(bulk.ids[span]),
                args="\n".join([row.args_json for row in rows]),
                kwargs="\n".join([row.kwargs_json for row in rows]),
                shas="\n".join([bulk.pattern.seal.sha(row, sent_at) for row in rows]),
            )


def spans(rows: Sequence[EncodedArguments]) -> Iterator[slice]:
    """Where each batch begins and ends; only a row that is too long by itself makes one longer than it should be."""
    start = characters = 0
    for index, row in enumerate(rows):
        length = len(row.args_json) + len(row.kwargs_json)
        if index - start == BATCH_ROWS or (characters + length > BATCH_CHARACTERS and index > start):
            yield slice(start, index)
            start, characters = index, 0
        characters += length
    if start < len(rows):
        yield slice(start, len(rows))
