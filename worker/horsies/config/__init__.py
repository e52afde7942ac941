"""Settings from files, environment, code and options, and the file that holds them."""

from horsies.config.keys import KEYS, Key
from horsies.config.loader import LoadedSettings, load
from horsies.config.render import SAMPLE_VALUES, Row, describe, render, write_new
from horsies.config.sources import FILE_NAME, Origin, Rank, working_folder

__all__ = [
    "FILE_NAME",
    "KEYS",
    "SAMPLE_VALUES",
    "Key",
    "LoadedSettings",
    "Origin",
    "Rank",
    "Row",
    "describe",
    "load",
    "render",
    "working_folder",
    "write_new",
]
