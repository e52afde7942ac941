"""Proposals: previews of operator actions, confirmed and applied in one dialog."""
