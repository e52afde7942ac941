"""The horsies.toml that a new project starts from."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from horsies.config.files import FILE_NAME, unusable
from horsies.config.rendering import render


def write_new(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Write a horsies.toml for a new project, whole or not at all.

    `path` is the file, or the folder to put it in. An existing file stays unless `force` is given; what is no regular
    file (a link, a device) stays in any case.
    """
    target = Path(path)
    try:
        if target.is_dir():
            target /= FILE_NAME
        elif os.fspath(path).endswith("/"):
            raise unusable(f"there is no folder {target}", hint="make the folder first")
        _refuse_unusual_targets(target)
        _write(target, render(settled=False), force=force)
    except FileExistsError:
        raise unusable(f"{target} exists already", hint="--force replaces it") from None
    except OSError as wrong:
        hint = "choose a place that this user may write to: horsies init --path FILE"
        raise unusable(f"{target}: cannot be written: {wrong.strerror}", hint=hint) from wrong
    return target


def _refuse_unusual_targets(target: Path) -> None:
    if not target.parent.is_dir():
        raise unusable(f"{target}: there is no folder {target.parent}", hint="make the folder first")
    if os.path.lexists(target) and not stat.S_ISREG(target.lstat().st_mode):
        raise unusable(f"{target}: is not a regular file", hint="name another one, or remove it first")


def _write(target: Path, text: str, *, force: bool) -> None:
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        if force:
            draft.replace(target)
        else:
            target.hardlink_to(draft)  # which is refused where there is a file, also one that has just come up
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
