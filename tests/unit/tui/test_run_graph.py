from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from horsies.model.workflow.plan import WorkflowTaskStatus
from horsies_ops.reads.workflows import NodeRow, WorkflowDetail, WorkflowRecord
from horsies_tui.screens.run_graph import GraphView, NodeLine, RunGraph, graph_lines
from horsies_tui.widgets.row_list import Heading
from tests.support.fake_system.catalog import WORKFLOWS, make_row, node
from tests.support.tui import NOON

DIGEST, CRAWL = WORKFLOWS["digest-run"], WORKFLOWS["crawl"]
STATES = {
    "D": WorkflowTaskStatus.COMPLETED,
    "F": WorkflowTaskStatus.FAILED,
    "S": WorkflowTaskStatus.SKIPPED,
    "R": WorkflowTaskStatus.RUNNING,
    "E": WorkflowTaskStatus.ENQUEUED,
    "P": WorkflowTaskStatus.PENDING,
}


def _run(workflow: Sequence[NodeRow], states: str) -> WorkflowDetail:
    """Return a run whose nodes have the given statuses, one letter each; the last node is its output."""
    nodes = tuple(
        replace(node, index=index, node_id=f"{node.name}:{index}", status=STATES[state])
        for index, (node, state) in enumerate(zip(workflow, states, strict=True))
    )
    run = make_row(WorkflowRecord, id=UUID(int=1), status="RUNNING", created_at=NOON, output_index=len(nodes) - 1)
    return WorkflowDetail(run=run, nodes=nodes, sub_workflows={})


def _drawn(detail: WorkflowDetail, view: GraphView | None = None) -> list[str]:
    return [
        line.text if isinstance(line, Heading) else f"{line.indent}{line.text}   {line.note}".rstrip()
        for line in graph_lines(detail, view or GraphView())
    ]


def _lines(detail: WorkflowDetail, view: GraphView | None = None) -> list[NodeLine]:
    return [line for line in graph_lines(detail, view or GraphView()) if isinstance(line, NodeLine)]


def test_custom_node_id_is_shown() -> None:
    detail = _run((node("etl.load"), node("etl.load")), "DD")
    apple, pear = detail.nodes
    named = replace(detail, nodes=(replace(apple, node_id="apple"), pear))
    assert [line.text for line in _lines(named)] == ["✓ [0] apple (etl.load)", "✓ [1] etl.load ★"]


def test_node_is_drawn_under_first_dependency_others_refer() -> None:
    assert _drawn(_run(DIGEST, "DFDSDSDDDS")) == [
        "├─✓ [0] scrape.page",
        "│  ├─⊘ [3] etl.load  needs [0], [1] and [2]   skipped: [1] failed",
        "│  │  └─⊘ [5] mail.send   skipped: [1] failed",
        "│  │     └─⊘ [9] report.build ★  needs [5] and [8]   skipped: [1] failed",
        "│  ├─✓ [4] etl.load  needs [0] or [2]",
        "│  │  └─✓ [6] mail.send",
        "│  │     └─✓ [8] mail.digest  needs [6] and [7]",
        "│  │        └─↳ see [9]",
        "│  └─✓ [7] etl.load  needs 2 of [0] [1] [2]",
        "│     └─↳ see [8]",
        "├─✗ [1] scrape.page   failed",
        "│  ├─↳ see [3]",
        "│  └─↳ see [7]",
        "└─✓ [2] scrape.page",
        "   ├─↳ see [3]",
        "   ├─↳ see [4]",
        "   └─↳ see [7]",
    ]


def test_waiting_node_shows_progress_of_dependencies() -> None:
    drawn = _drawn(_run(DIGEST, "DFRPDPDPPP"))
    assert "│  └─○ [7] etl.load  needs 2 of [0] [1] [2]   1 of 3 done, 1 failed" in drawn


def test_node_skipped_with_its_run_names_no_cause() -> None:
    assert "│  ├─⊘ [3] etl.load  needs [0], [1] and [2]   skipped: run finished" in _drawn(_run(DIGEST, "DDDSDSDDDS"))


def test_many_similar_siblings_share_one_line() -> None:
    drawn = _drawn(_run(CRAWL, "D" + "D" * 130 + "F" * 6 + "E" * 44 + "PP"))
    assert drawn[1] == "   ├─✓ ×130 scrape.page"
    assert drawn[2] == "   │  └─○ [181] etl.load  needs 150 of 180   130 of 180 done, 6 failed"
    assert "   └─◎ ×44 scrape.page   queued" in drawn
    assert len(drawn) == 1 + 1 + 2 + 6 * 2 + 2


def test_expanded_group_shows_each_node() -> None:
    detail = _run(CRAWL, "D" + "D" * 180 + "PP")
    group = next(line for line in _lines(detail) if len(line.nodes) > 1)
    expanded = GraphView().unfold(group)
    assert len([line for line in _lines(detail, expanded) if line.nodes[0].name == "scrape.page"]) == 180


def test_folded_node_shows_number_of_descendants() -> None:
    detail = _run(DIGEST, "DFDSDSDDDS")
    view = GraphView().fold(_lines(detail)[0])
    assert _drawn(detail, view)[:2] == ["├─✓ [0] scrape.page  (7 below)", "├─✗ [1] scrape.page   failed"]
    assert view.unfold(_lines(detail, view)[0]) == GraphView()


def test_hiding_healthy_keeps_failed_nodes_and_ancestors() -> None:
    shown = {line.nodes[0].index for line in _lines(_run(DIGEST, "DFDSDSDDDS"), GraphView(shows_only_failed=True))}
    assert shown == {0, 1, 3, 5, 9}


def test_layer_headings_count_statuses() -> None:
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


def test_chain_deeper_than_recursion_limit_is_drawn() -> None:
    chain = (node("etl.load"), *(node("etl.load", at) for at in range(2999)))
    lines = _lines(_run(chain, "D" * 3000))
    assert len(lines) == 3000
    assert max(len(line.indent) for line in lines) < 45
    assert len(RunGraph.of(_run(chain, "D" * 3000).nodes).layers()) == 3000


@st.composite
def _graphs(draw: st.DrawFn) -> tuple[NodeRow, ...]:
    """Draw any acyclic graph: a node depends on some of the nodes before it."""
    count = draw(st.integers(1, 30))
    nodes = [
        node(
            draw(st.sampled_from(["etl.load", "mail.send"])),
            *(draw(st.lists(st.integers(0, at - 1), max_size=4, unique=True)) if at else ()),
        )
        for at in range(count)
    ]
    return tuple(nodes)


@settings(max_examples=60)
@given(workflow=_graphs(), states=st.text(alphabet="DFSREP", min_size=30, max_size=30), layers=st.booleans())
def test_every_node_is_drawn_exactly_once(workflow: tuple[NodeRow, ...], states: str, layers: bool) -> None:
    detail = _run(workflow, states[: len(workflow)])
    drawn = [line for line in _lines(detail, GraphView(shows_layers=layers)) if not line.is_pointer]
    assert sorted(node.index for line in drawn for node in line.nodes) == list(range(len(workflow)))
    keys = [line.key for line in _lines(detail, GraphView(shows_layers=layers))]
    assert len(keys) == len(set(keys))
