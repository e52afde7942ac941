"""Parsing and formatting the text of task filters."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.task import TaskStatus
from horsies_ops.reads.filters import FilterFault, TaskFilter, format_filter, glob_to_like, like_to_glob, parse_filter

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
FULL_ID = "019a8c41-7d0e-7c55-9d1c-2f1aa91f03c2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", TaskFilter()),
        ("  ", TaskFilter()),
        ("status:failed,expired", TaskFilter(statuses=("FAILED", "EXPIRED"))),
        ("STATUS:Failed", TaskFilter(statuses=("FAILED",))),
        ("queue:mail name:mail.*", TaskFilter(queues=("mail",), names=("mail.*",))),
        ("err:Timeout*,SMTP?", TaskFilter(error_codes=("Timeout*", "SMTP?"))),
        ("worker:4e14a9f1", TaskFilter(worker_id="4e14a9f1")),
        (f"wf:{FULL_ID}", TaskFilter(workflow_id=FULL_ID)),
        (f"id:a91f03c2,{FULL_ID}", TaskFilter(ids=("a91f03c2", FULL_ID))),
        ("age<1h", TaskFilter(newer_than=HOUR)),
        ("age<=1h", TaskFilter(newer_than=HOUR)),
        ("age>1h", TaskFilter(older_than=HOUR)),
        ("age>10m age<1h", TaskFilter(older_than=10 * MINUTE, newer_than=HOUR)),
        ("wait>60s run>5m hb>=60s", TaskFilter(min_wait=MINUTE, min_run=5 * MINUTE, min_silence=MINUTE)),
        ("att>=2", TaskFilter(min_attempts=2)),
        ("att>2", TaskFilter(min_attempts=3)),
        ("att<2", TaskFilter(exclude=(TaskFilter(min_attempts=2),))),
        ("att<=2", TaskFilter(exclude=(TaskFilter(min_attempts=3),))),
        ("-att<2", TaskFilter(min_attempts=2)),
        ("due:later", TaskFilter(due_later=True)),
        ("due:now retried:yes flag:vip", TaskFilter(due_later=False, retried=True, flag="vip")),
        ("-queue:mail -name:x", TaskFilter(exclude=(TaskFilter(queues=("mail",)), TaskFilter(names=("x",))))),
        ("-(queue:mail name:x)", TaskFilter(exclude=(TaskFilter(queues=("mail",), names=("x",)),))),
        ('queue:"a b","c,d"', TaskFilter(queues=("a b", "c,d"))),
        (r'text:"say \"no\""', TaskFilter(text='say "no"')),
        ("timeout", TaskFilter(text="timeout")),
        ("-timeout", TaskFilter(exclude=(TaskFilter(text="timeout"),))),
        ("a91f03c2", TaskFilter(ids=("a91f03c2",))),
        (FULL_ID.upper(), TaskFilter(ids=(FULL_ID.upper(),))),
        ('"a91f03c2"', TaskFilter(text="a91f03c2")),
    ],
)
def test_text_is_parsed_into_a_filter(text: str, expected: TaskFilter) -> None:
    assert parse_filter(text) == expected


@pytest.mark.parametrize(
    ("text", "position", "message", "hint"),
    [
        ("queue:mail stauts:failed", 11, "unknown key 'stauts'", "did you mean status?"),
        ("colour:red", 0, "unknown key 'colour'", "keys: status, queue"),
        ("status:failed,nope", 14, "unknown status 'nope'", "pending, claimed"),
        ("queue:", 6, "missing value", "right after the operator"),
        ("queue: mail", 6, "missing value", "right after the operator"),
        ("queue:a,", 8, "missing value", "right after the operator"),
        ("queue:a queue:b", 8, "queue is given twice", "commas"),
        ("one two", 4, "search text is given twice", "quotes"),
        ("worker:w-7", 7, "invalid id 'w-7'", "last 8 digits"),
        ("wf:4e14a9f1,a91f03c2", 12, "wf takes one value", "comma"),
        ("age<1x", 4, "invalid duration '1x'", "examples: 30s, 5m"),
        ("age:1h", 0, "age needs a comparison", "write age>5m"),
        ("att>two", 4, "invalid number of attempts", "whole number"),
        ("run<5m", 0, "run supports only >", "-run>5m"),
        ("status<failed", 0, "status cannot be compared", "status:value"),
        ("due:tomorrow", 4, "invalid value 'tomorrow' for due", "later or now"),
        ('name:"mail', 5, "unclosed quote", 'close it with "'),
        ("-(queue:a", 0, "unclosed group", "close it"),
        ("x -(-queue:a)", 2, "nested negation", "out of the group"),
        ("queue:a)", 7, "unmatched )", "quotes"),
        ("(queue:mail", 0, "unclosed (", "-(…)"),
        ("(queue:mail)", 0, "group without a minus", "-(…)"),
    ],
)
def test_fault_has_position_message_and_hint(text: str, position: int, message: str, hint: str) -> None:
    fault = parse_filter(text)
    assert isinstance(fault, FilterFault)
    assert fault.position == position
    assert message in fault.message
    assert hint in fault.hint


_VALUES = st.text(min_size=1, max_size=12)
_LISTS = st.lists(_VALUES, min_size=1, max_size=3).map(tuple)
_TIMES = st.integers(min_value=0, max_value=10**9).map(lambda ms: timedelta(milliseconds=ms))
_IDS = st.one_of(st.uuids().map(str), st.from_regex("[0-9a-f]{8}", fullmatch=True))
_CONDITIONS = st.fixed_dictionaries(
    {},
    optional={
        "statuses": st.lists(st.sampled_from(TaskStatus), min_size=1, max_size=3).map(tuple),
        "queues": _LISTS,
        "names": _LISTS,
        "error_codes": _LISTS,
        "ids": st.lists(_IDS, min_size=1, max_size=3).map(tuple),
        "worker_id": _IDS,
        "workflow_id": _IDS,
        "flag": _VALUES,
        "text": _VALUES,
        "retried": st.booleans(),
        "due_later": st.booleans(),
        "older_than": _TIMES,
        "newer_than": _TIMES,
        "min_wait": _TIMES,
        "min_run": _TIMES,
        "min_silence": _TIMES,
        "min_attempts": st.integers(min_value=0, max_value=99),
    },
)


def _filter(conditions: dict[str, Any]) -> TaskFilter:
    return TaskFilter(**conditions)


@given(included=_CONDITIONS.map(_filter), excluded=st.lists(_CONDITIONS.filter(bool).map(_filter), max_size=2))
def test_formatted_filter_parses_to_the_same_filter(included: TaskFilter, excluded: list[TaskFilter]) -> None:
    task_filter = replace(included, exclude=tuple(excluded) or None)
    assert parse_filter(format_filter(task_filter)) == task_filter


@given(st.text(alphabet='abc:<>-(),"\\ 123hms*', max_size=30))
def test_any_text_is_a_filter_or_a_fault_inside_it(text: str) -> None:
    parsed = parse_filter(text)
    assert isinstance(parsed, TaskFilter) or 0 <= parsed.position <= len(text)


@given(st.text(max_size=20).filter(lambda text: "\\" not in text))
def test_glob_survives_as_like_pattern(glob: str) -> None:
    assert like_to_glob(glob_to_like(glob)) == glob
