"""Parsing and formatting the text of workflow filters."""

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
    ("text", "expected"),
    [
        ("", DEFAULT_WORKFLOW_FILTER),
        ("status:running,failed", WorkflowFilter(statuses=("RUNNING", "FAILED"), root_only=True)),
        ("name:etl-* sub:yes", WorkflowFilter(names=("etl-*",))),
        ("digest", WorkflowFilter(names=("*digest*",), root_only=True)),
    ],
)
def test_text_is_parsed_into_a_filter(text: str, expected: WorkflowFilter) -> None:
    assert parse_workflow_filter(text) == expected


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
def test_fault_has_position_and_message(text: str, position: int, message: str) -> None:
    fault = parse_workflow_filter(text)
    assert isinstance(fault, FilterFault)
    assert (fault.position, fault.message) == (position, message)


@given(
    statuses=st.lists(st.sampled_from(WorkflowStatus), unique=True),
    names=st.lists(st.text(min_size=1).filter(str.strip)),
    root_only=st.booleans(),
)
def test_formatted_filter_parses_to_the_same_filter(statuses: list[str], names: list[str], root_only: bool) -> None:
    workflow_filter = WorkflowFilter(statuses=tuple(statuses), names=tuple(names), root_only=root_only)
    assert parse_workflow_filter(format_workflow_filter(workflow_filter)) == workflow_filter
