"""SIGTERM cancels the work of a command: an error raised in the middle of the event loop could make it wait forever."""

from __future__ import annotations

import subprocess
import sys

import pytest

START = """
import asyncio, signal
from horsies_ops.cli.main import install_interrupt

signal.signal(signal.SIGINT, signal.{sigint})
install_interrupt()
"""
INTERRUPTED_OUTSIDE_A_LOOP = """
try:
    signal.raise_signal(signal.SIGTERM)
except KeyboardInterrupt:
    print("interrupted")
"""
INTERRUPTED_IN_A_LOOP = """
async def work():
    signal.raise_signal(signal.SIGTERM)
    print("goes on to the next wait")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        print("is cancelled there")
        raise

try:
    asyncio.run(work())
except KeyboardInterrupt:
    print("interrupted")
"""


def _output(program: str, *, sigint: str = "default_int_handler") -> list[str]:
    command = [sys.executable, "-c", START.replace("{sigint}", sigint) + program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()


def test_sigterm_cancels_the_work_at_its_next_wait() -> None:
    assert _output(INTERRUPTED_IN_A_LOOP) == ["goes on to the next wait", "is cancelled there", "interrupted"]


def test_sigterm_ends_a_loop_that_ignores_sigint() -> None:
    assert _output(INTERRUPTED_IN_A_LOOP, sigint="SIG_IGN") == ["interrupted"]


@pytest.mark.parametrize("sigint", ["default_int_handler", "SIG_IGN"])
def test_sigterm_outside_a_loop_interrupts_at_once(sigint: str) -> None:
    assert _output(INTERRUPTED_OUTSIDE_A_LOOP, sigint=sigint) == ["interrupted"]
