"""Workflows as values: what authors declare, what a run is made of, and the rules by which it moves."""
