"""Which signals stop a worker."""

from __future__ import annotations

import signal

from horsies.engine.child.lifetime import stop_signals


def test_hangup_does_not_stop_a_worker_that_was_started_to_ignore_it() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        assert signal.SIGHUP in stop_signals()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert stop_signals() == [signal.SIGTERM, signal.SIGINT]
    finally:
        signal.signal(signal.SIGHUP, before)
