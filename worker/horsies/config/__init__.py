"""Settings from files, environment, code and options, and the file that holds them."""

from horsies.config.describing import Row, describe
from horsies.config.files import FILE_NAME, working_folder
from horsies.config.keys import KEYS, Key
from horsies.config.loading import LoadedSettings, load
from horsies.config.origin import Origin, Rank
from horsies.config.rendering import SAMPLE_VALUES, render
from horsies.config.writing import write_new

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
