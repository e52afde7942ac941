"""The user's app, as the commands that need it load it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from horsies_ops.cli.session import GlobalOptions

if TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.config import LoadedSettings

AppArgument = Annotated[
    str | None,
    typer.Argument(metavar="APP", help="package.module:app or path/file.py:app; app.locator where it is left out."),
]


def settings_for_app(options: GlobalOptions, **given: object) -> LoadedSettings:
    """The settings in force, which the app will also find when it is imported.

    An app reads its settings while its module is imported, and so do the children of a worker: the environment is the
    one way by which what was said on the command line reaches them all.
    """
    if options.config is not None:
        os.environ["HORSIES_CONFIG"] = str(options.config.absolute())
    if options.database_url is not None:
        os.environ["HORSIES_BROKER__DATABASE_URL"] = options.database_url
    return options.settings(**given)


def load_app(options: GlobalOptions, locator: str | None) -> Horsies:
    """The app at `locator` with all of its tasks."""
    from horsies.discover import find_app

    return find_app(locator, settings_for_app(options))
