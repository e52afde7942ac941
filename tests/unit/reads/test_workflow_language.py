from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.workflow.plan import WorkflowStatus
from horsies_ops.reads.filters import FilterFault
from horsies_ops.reads.workflows import (
    DEFAULT_WORKFLOW_FILTER,
    WorkflowFilter,
    format_workflow_filter,
    parse_workflow_filter,
)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", DEFAULT_WORKFLOW_FILTER),
        ("status:running,failed", WorkflowFilter(statuses=("RUNNING", "FAILED"), root_only=True)),
        ("name:etl-* sub:yes", WorkflowFilter(names=("etl-*",))),
        ("digest", WorkflowFilter(names=("*digest*",), root_only=True)),
    ],
)
def test_a_line_says_which_runs_are_wanted(text: str, meant: WorkflowFilter) -> None:
    assert parse_workflow_filter(text) == meant


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("status:gone", 7, "unknown status 'gone'"),
        ("queue:mail", 0, "unknown key 'queue'"),
        ("-status:failed", 0, "runs cannot be excluded"),
        ("sub:maybe", 4, "invalid value 'maybe' for sub"),
        ('name:"etl', 5, "unclosed quote"),
    ],
)
def test_what_makes_no_sense_is_said_with_its_place(text: str, position: int, message: str) -> None:
    fault = parse_workflow_filter(text)
    assert isinstance(fault, FilterFault)
    assert (fault.position, fault.message) == (position, message)


@given(
    statuses=st.lists(st.sampled_from(WorkflowStatus), unique=True),
    names=st.lists(st.text(min_size=1).filter(str.strip)),
    root_only=st.booleans(),
)
def test_a_filter_written_down_is_read_back(statuses: list[str], names: list[str], root_only: bool) -> None:
    wanted = WorkflowFilter(statuses=tuple(statuses), names=tuple(names), root_only=root_only)
    assert parse_workflow_filter(format_workflow_filter(wanted)) == wanted
