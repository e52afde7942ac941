"""Names that a worker does not know: reports, searches and echoes of its own releases."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import cast

from horsies.engine.unknown_tasks import UnknownTasks
from horsies.store.claims import ClaimStore

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Claims:
    """Counts the searches; each takes `took_s`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.took_s = 0.0
        self.searches: list[tuple[Sequence[str], Sequence[str]]] = []

    async def first_known(self, queues: Sequence[str], unknown: Sequence[str]) -> dict[str, datetime]:
        self.searches.append((queues, unknown))
        self.now += self.took_s
        return {"default": NOON}


def tasks_of(claims: Claims, reported: list[str] | None = None) -> UnknownTasks:
    emit = [] if reported is None else reported
    return UnknownTasks(cast("ClaimStore", claims), ["default"], on_unknown=emit.append, clock=lambda: claims.now)


async def test_nothing_is_searched_without_unknown_tasks() -> None:
    claims = Claims()
    await tasks_of(claims).search()
    assert claims.searches == []


async def test_search_is_repeated_rarely_and_after_each_new_name() -> None:
    claims = Claims()
    unknown = tasks_of(claims)
    unknown.exclude("a")
    claims.took_s = 0.5
    for now in (0.0, 5.0, 9.0, 10.5):
        claims.now = now
        await unknown.search()
    assert len(claims.searches) == 2, "a search of 0.5 s is repeated after 10 s"
    unknown.exclude("b")
    await unknown.search()
    assert claims.searches[-1] == (["default"], ["a", "b"])
    assert unknown.skip_before == {"default": NOON}


async def test_new_child_may_know_all_tasks() -> None:
    unknown = tasks_of(Claims())
    unknown.exclude("a")
    await unknown.search()
    unknown.clear()
    assert (unknown.names, unknown.skip_before) == (set(), {})


def test_each_name_is_reported_once_a_minute() -> None:
    claims, reported = Claims(), list[str]()
    unknown = tasks_of(claims, reported)
    for now, name in ((0, "a"), (30, "a"), (30, "b"), (61, "a")):
        claims.now = now
        unknown.report(name)
    assert reported == ["a", "b", "a"]


def test_notification_of_an_own_release_is_an_echo_once() -> None:
    claims = Claims()
    unknown = tasks_of(claims)
    unknown.expect_own_notifications({"default"})
    assert [
        unknown.is_own_notification("other"),
        unknown.is_own_notification("default"),
        unknown.is_own_notification("default"),
    ] == [False, True, False]
    unknown.expect_own_notifications({"default"})
    claims.now = 2.0
    assert not unknown.is_own_notification("default"), "it was lost"


async def test_search_that_a_new_child_overtook_has_no_effect() -> None:
    """Otherwise claims would skip due tasks for ever: without unknown names there is no other search."""

    class OvertakenClaims(Claims):
        async def first_known(self, queues: Sequence[str], unknown: Sequence[str]) -> dict[str, datetime]:
            tasks.clear()
            return await super().first_known(queues, unknown)

    tasks = tasks_of(OvertakenClaims())
    tasks.exclude("a")
    await tasks.search()
    assert tasks.skip_before == {}
