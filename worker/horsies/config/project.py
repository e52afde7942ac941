"""The project that a process belongs to, and the folder of its own embedded database.

The project is the folder of the horsies.toml in use, else of the file that constructs the app. A command without an app
uses the nearest folder that has a database already.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from horsies.config.sources import find_config_file, folders_to_search
from horsies.model.settings import AppConfig

FOLDER_NAME = ".horsies"
ROOT_FOLDER = Path("/var/lib/horsies")
# An installed package may be removed or replaced with everything in its folder.
_LIBRARIES = {"site-packages", "dist-packages"}


def discover_file(folder: Path, code: Path | None) -> Path | None:
    """Return the nearest horsies.toml above the working folder, else above the file that constructs the app.

    One of another project does not count: the working folder may lie in a project that the app is not part of.
    """
    found = find_config_file(folder)
    if code is None:
        return found
    # The owner of the code could have written the settings into it.
    beside_code = find_config_file(code.parent, trusted_uid=code.stat().st_uid)
    if found is None or (beside_code is not None and not found.is_relative_to(beside_code.parent)):
        return beside_code
    return found


def find_project(config_file: Path | None, code: Path | None, folder: Path) -> Path | None:
    """Return the project folder without symlinks; None if nothing tells it."""
    if config_file is not None:
        found = config_file.parent
    elif code is not None and _LIBRARIES.isdisjoint(code.parts):
        found = code.parent
    else:
        found = next(filter(_has_database, folders_to_search(folder)), None)
    return None if found is None else Path(os.path.realpath(found))


def database_folder(project: Path) -> Path:
    """Return the folder of a project's own embedded database."""
    if os.geteuid() != 0:
        return project / FOLDER_NAME
    # Elsewhere, because the account that runs the server for root often may not enter the project.
    return ROOT_FOLDER / hashlib.sha256(os.fsencode(project)).hexdigest()[:16]


def in_project(app: AppConfig, project: Path) -> AppConfig:
    """Return the settings with the project's own database, if they name no other one."""
    url = app.broker.database_url.in_project(project, database_folder(project))
    if url is app.broker.database_url:
        return app
    return app.model_copy(update={"broker": app.broker.model_copy(update={"database_url": url})})


def _has_database(folder: Path) -> bool:
    return any(map(os.path.isdir, (folder / FOLDER_NAME, database_folder(folder))))
