"""The preview of a sweep, and where there is nothing to do, what may be there to do soon."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from horsies_tui.format import age, clock, plural
from horsies_tui.sweep_proposals import for_sweep

if TYPE_CHECKING:
    from horsies.model.recovery.options import SweepOptions
    from horsies_tui.proposals import Proposal
    from horsies_tui.source import Source


async def sweep_or_silence(source: Source, options: SweepOptions) -> Proposal:
    """What a sweep would do now; one that would do nothing says what is silent and from when it will be stale."""
    proposal = await for_sweep(source, options)
    silent = await source.not_yet_stale(options) if proposal.is_empty else None
    if silent is None:
        return proposal
    said = f"{plural(silent.count, 'task')} silent for {age(silent.longest)}, stale from {clock(silent.stale_at)}"
    return replace(proposal, warnings=(*proposal.warnings, said))
