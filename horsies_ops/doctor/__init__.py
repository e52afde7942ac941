"""Whether everything is as it should be, and what to do where it is not.

A check is a function that reads and returns a `Finding`. `server`, `fleet` and `records` hold them, each with its rule
in a function of its own that takes values only; `rounds` has their list.
"""

from horsies_ops.doctor.findings import Check, Diagnosis, Finding, Status
from horsies_ops.doctor.rounds import diagnose

__all__ = ["Check", "Diagnosis", "Finding", "Status", "diagnose"]
