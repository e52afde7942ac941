"""Streams that log each line: complete, once and without recursion."""

from __future__ import annotations

import io
import json
import logging

from horsies.log import JsonFormatter
from horsies_ops.cli.json_log import LogStream


def lines_onto(target: io.StringIO) -> LogStream:
    handler = logging.StreamHandler(target)
    handler.setFormatter(JsonFormatter())
    return LogStream("stdout", logging.INFO, handler, 1)


def test_line_is_logged_when_complete_or_flushed() -> None:
    target = io.StringIO()
    stream = lines_onto(target).as_text()
    stream.write("one\ntw")
    assert [json.loads(line)["message"] for line in target.getvalue().splitlines()] == ["one"]
    stream.write("o")
    stream.flush()
    assert json.loads(target.getvalue().splitlines()[1])["message"] == "two"


def test_undecodable_bytes_are_replaced() -> None:
    target = io.StringIO()
    lines_onto(target).write(b"\xff here\n")
    assert json.loads(target.getvalue())["message"] == "\ufffd here"


class Complaining(logging.Handler):
    """Reports its own failure on the stream it handles."""

    stream: LogStream

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.asked += bool(record.getMessage())
        self.stream.write(b"no room\n")


def test_handler_errors_do_not_recurse() -> None:
    handler = Complaining()
    handler.stream = LogStream("stderr", logging.WARNING, handler, 2)
    handler.stream.write(b"something\n")
    assert handler.asked == 1
