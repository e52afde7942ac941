"""Recovery rules: what happens to tasks whose worker or child may be dead."""
