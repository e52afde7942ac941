"""Globs with `*` and `?`, as operators write them."""

from __future__ import annotations

_LIKE = str.maketrans({"*": "%", "?": "_", "%": r"\%", "_": r"\_", "\\": r"\\"})


def like(glob: str) -> str:
    """The pattern by which LIKE finds what the glob means."""
    return glob.translate(_LIKE)
