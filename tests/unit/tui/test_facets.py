from __future__ import annotations

from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.search import Facet, Facets
from horsies_tui.screens.tasks.screen import TasksScreen
from horsies_tui.widgets.filter_bar import TASK_FILTER, FacetPopup, FilterSuggester, facet_choices, with_facets
from tests.support.tui import eventually, running_app, screen_text

FACETS = Facets(
    statuses=(Facet(value="FAILED", count=58),), queues=(Facet(value="mail", count=41),), names=(), error_codes=()
)


def test_filtered_value_without_matches_can_be_unselected() -> None:
    choices = facet_choices(FACETS, TaskFilter(queues=("legacy",)))
    assert [(choice.key, choice.count) for choice in choices] == [
        (("statuses", "FAILED"), 58),
        (("queues", "mail"), 41),
        (("queues", "legacy"), None),
    ]


def test_selected_facets_replace_only_facet_fields() -> None:
    before = TaskFilter(queues=("mail",), min_attempts=2)
    after = with_facets(before, [("statuses", "FAILED"), ("statuses", "EXPIRED")])
    assert after == TaskFilter(statuses=("FAILED", "EXPIRED"), queues=(), min_attempts=2)


async def test_selected_facets_are_written_into_filter() -> None:
    async with running_app() as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, TasksScreen)
        await pilot.press("f")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, FacetPopup) and "mail" in screen_text(pilot))
        await pilot.press("j", "space", "enter")
        await eventually(pilot, lambda: pilot.app.screen is screen)
        assert len(screen.filter.statuses) == 1
        await eventually(pilot, lambda: f"status:{str(screen.filter.statuses[0]).lower()}" in screen_text(pilot))


async def test_suggester_completes_keys_and_values() -> None:
    suggester = FilterSuggester(TASK_FILTER.keys, {"queue": ["mail", "default"]})
    assert await suggester.get_suggestion("sta") == "status:"
    assert await suggester.get_suggestion("status:failed queue:ma") == "status:failed queue:mail"
    assert await suggester.get_suggestion("queue:mail,de") == "queue:mail,default"
    assert await suggester.get_suggestion("-queue:m") == "-queue:mail"
    assert await suggester.get_suggestion("colour:re") is None


async def test_popup_without_selection_keeps_filter_empty() -> None:
    async with running_app() as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, TasksScreen)
        await pilot.press("f")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, FacetPopup) and "mail" in screen_text(pilot))
        await pilot.press("j", "enter")
        await eventually(pilot, lambda: pilot.app.screen is screen)
        assert screen.filter.is_empty
