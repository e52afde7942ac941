"""What the user sees while the first command sets up the database."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from horsies.embedded.progress import show_progress


class RecordingStream(io.StringIO):
    """Records what is written, and lets a test wait for a number of writes."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def test_spinner_turns_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = RecordingStream(is_terminal=True)
    monkeypatch.setattr(sys, "stderr", stream)
    with show_progress("setting up"):
        while stream.getvalue().count("setting up") < 3:
            pass
    frames = [part.removeprefix("\x1b[K") for part in stream.getvalue().split("\r") if part]
    assert len(set(frames[:3])) == 3
    assert all(frame.endswith(" setting up") for frame in frames[:3])
    assert frames[-1].startswith("setting up: ")
    assert frames[-1].endswith(" s\n")


def test_spinner_does_not_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = RecordingStream(is_terminal=True)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "20")
    with show_progress("x" * 100):
        while "\r" not in stream.getvalue():
            pass
    assert len(stream.getvalue().split("\r")[1].removeprefix("\x1b[K")) == 19


def test_one_line_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = RecordingStream(is_terminal=False)
    monkeypatch.setattr(sys, "stderr", stream)
    with show_progress("setting up"):
        pass
    assert stream.getvalue() == "setting up\n"


def test_nothing_if_warnings_are_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = RecordingStream(is_terminal=True)
    monkeypatch.setattr(sys, "stderr", stream)
    logger = logging.getLogger("horsies")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with show_progress("setting up"):
            pass
    finally:
        logger.setLevel(level)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_missing_or_closed_stream_is_ignored(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    if stream is not None:
        stream.close()
    with show_progress("setting up"):
        pass
