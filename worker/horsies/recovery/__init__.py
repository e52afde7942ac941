"""Recovery of stale work: sweeps, recovery hooks and retention."""
