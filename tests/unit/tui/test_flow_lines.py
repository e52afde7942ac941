from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from horsies.model.workflow.plan import WorkflowTaskStatus
from horsies_ops.reads.workflows import WorkflowDetail
from horsies_tui.demo.system import DemoSystem
from horsies_tui.demo.workflows import CRAWL, DIGEST, DemoNode, DemoWorkflow
from horsies_tui.screens.workflows.graph import GraphView, NodeLine, RunGraph, graph_lines
from horsies_tui.theme import UNICODE
from horsies_tui.widgets.row_list import Heading
from tests.support.tui import NOON

STATES = {
    "D": WorkflowTaskStatus.COMPLETED,
    "F": WorkflowTaskStatus.FAILED,
    "S": WorkflowTaskStatus.SKIPPED,
    "R": WorkflowTaskStatus.RUNNING,
    "E": WorkflowTaskStatus.ENQUEUED,
    "P": WorkflowTaskStatus.PENDING,
}


def _run(blueprint: DemoWorkflow, states: str) -> WorkflowDetail:
    """A run of which each node is in the state that its letter stands for."""
    flows = DemoSystem(lambda: NOON).workflow_runs
    detail = flows.detail(flows.start_run(blueprint).id)
    assert detail is not None
    nodes = tuple(replace(node, status=STATES[state]) for node, state in zip(detail.nodes, states, strict=True))
    return replace(detail, nodes=nodes)


def _drawn(detail: WorkflowDetail, view: GraphView | None = None) -> list[str]:
    return [
        line.text if isinstance(line, Heading) else f"{line.indent}{line.text}   {line.note}".rstrip()
        for line in graph_lines(detail, view or GraphView(), UNICODE)
    ]


def _lines(detail: WorkflowDetail, view: GraphView | None = None) -> list[NodeLine]:
    return [line for line in graph_lines(detail, view or GraphView(), UNICODE) if isinstance(line, NodeLine)]


def test_a_node_with_an_id_of_its_own_is_drawn_with_it() -> None:
    detail = _run(DemoWorkflow(name="prices", nodes=(DemoNode(name="price"), DemoNode(name="price")), output=1), "DD")
    apple, pear = detail.nodes
    named = replace(detail, nodes=(replace(apple, node_id="apple"), pear))
    assert [line.text for line in _lines(named)] == ["✓ [0] apple (price)", "✓ [1] price ★"]


def test_a_node_stands_below_the_first_it_waits_for_and_the_others_point_to_it() -> None:
    assert _drawn(_run(DIGEST, "DFDSDSDDDS")) == [
        "├─✓ [0] scrape.page",
        "│  ├─⊘ [3] etl.load  all of 0,1,2   skipped: [1] failed",
        "│  │  └─⊘ [5] mail.send   skipped: [1] failed",
        "│  │     └─⊘ [9] report.build ★  all of 5,8   skipped: [1] failed",
        "│  ├─✓ [4] etl.load  any of 0,2",
        "│  │  └─✓ [6] mail.send",
        "│  │     └─✓ [8] mail.digest  all of 6,7",
        "│  │        └─↳ see [9]",
        "│  └─✓ [7] etl.load  quorum 2 of 3",
        "│     └─↳ see [8]",
        "├─✗ [1] scrape.page   failed",
        "│  ├─↳ see [3]",
        "│  └─↳ see [7]",
        "└─✓ [2] scrape.page",
        "   ├─↳ see [3]",
        "   ├─↳ see [4]",
        "   └─↳ see [7]",
    ]


def test_what_waits_says_how_far_that_has_come_which_it_waits_for() -> None:
    drawn = _drawn(_run(DIGEST, "DFRPDPDPPP"))
    assert "│  └─○ [7] etl.load  quorum 2 of 3   have 1, failed 1, waiting 1" in drawn


def test_a_node_that_was_skipped_with_its_run_blames_no_other() -> None:
    assert "│  ├─⊘ [3] etl.load  all of 0,1,2   skipped: the run ended" in _drawn(_run(DIGEST, "DDDSDSDDDS"))


def test_many_siblings_alike_are_one_line_with_what_is_below_them() -> None:
    drawn = _drawn(_run(CRAWL, "D" + "D" * 130 + "F" * 6 + "E" * 44 + "PP"))
    assert drawn[1] == "   ├─✓ ×130 scrape.page"
    assert drawn[2] == "   │  └─○ [181] etl.load  quorum 150 of 180   have 130, failed 6, waiting 44"
    assert "   └─◎ ×44 scrape.page   queued" in drawn
    assert len(drawn) == 1 + 1 + 2 + 6 * 2 + 2


def test_a_group_that_is_opened_shows_each_of_its_nodes() -> None:
    detail = _run(CRAWL, "D" + "D" * 180 + "PP")
    group = next(line for line in _lines(detail) if len(line.nodes) > 1)
    opened = GraphView().unfold(group)
    assert len([line for line in _lines(detail, opened) if line.nodes[0].name == "scrape.page"]) == 180


def test_a_folded_line_hides_what_is_below_and_says_how_much() -> None:
    detail = _run(DIGEST, "DFDSDSDDDS")
    view = GraphView().fold(_lines(detail)[0])
    assert _drawn(detail, view)[:2] == ["├─✓ [0] scrape.page  (7 below)", "├─✗ [1] scrape.page   failed"]
    assert view.unfold(_lines(detail, view)[0]) == GraphView()


def test_only_what_was_lost_is_shown_with_what_stands_above_it() -> None:
    shown = {line.nodes[0].index for line in _lines(_run(DIGEST, "DFDSDSDDDS"), GraphView(shows_only_failed=True))}
    assert shown == {0, 1, 3, 5, 9}


def test_layers_are_counted_by_state() -> None:
    headings = [
        line for line in _drawn(_run(DIGEST, "DFDSDSDDDS"), GraphView(shows_layers=True)) if line.startswith("layer")
    ]
    assert headings == [
        "layer 0   3 nodes   ✓ 2  ✗ 1",
        "layer 1   3 nodes   ✓ 2  ⊘ 1",
        "layer 2   2 nodes   ✓ 1  ⊘ 1",
        "layer 3   1 node   ✓ 1",
        "layer 4   1 node   ⊘ 1",
    ]


def test_a_chain_longer_than_the_stack_is_deep_is_drawn_within_the_screen() -> None:
    chain = DemoWorkflow(
        name="chain", nodes=tuple(DemoNode(name="etl.load", after=(at - 1,) if at else ()) for at in range(3000))
    )
    lines = _lines(_run(chain, "D" * 3000))
    assert len(lines) == 3000
    assert max(len(line.indent) for line in lines) < 45
    assert len(RunGraph.of(_run(chain, "D" * 3000).nodes).layers()) == 3000


@st.composite
def _graphs(draw: st.DrawFn) -> DemoWorkflow:
    """Any graph without a cycle: a node waits for some of those before it."""
    count = draw(st.integers(1, 30))
    steps = [
        DemoNode(
            name=draw(st.sampled_from(["etl.load", "mail.send"])),
            after=tuple(draw(st.lists(st.integers(0, at - 1), max_size=4, unique=True))) if at else (),
        )
        for at in range(count)
    ]
    return DemoWorkflow(name="any", nodes=tuple(steps))


@settings(max_examples=60)
@given(blueprint=_graphs(), states=st.text(alphabet="DFSREP", min_size=30, max_size=30), layers=st.booleans())
def test_every_node_of_any_graph_is_drawn_exactly_once(blueprint: DemoWorkflow, states: str, layers: bool) -> None:
    detail = _run(blueprint, states[: len(blueprint.nodes)])
    drawn = [line for line in _lines(detail, GraphView(shows_layers=layers)) if not line.is_pointer]
    assert sorted(node.index for line in drawn for node in line.nodes) == list(range(len(blueprint.nodes)))
    keys = [line.key for line in _lines(detail, GraphView(shows_layers=layers))]
    assert len(keys) == len(set(keys))
