"""Settings from files, environment, code and options, and the file that holds them."""

from horsies.config.describing import Row, describe
from horsies.config.files import FILE_NAME
from horsies.config.keys import KEYS, Key
from horsies.config.loading import LoadedSettings, load
from horsies.config.origin import Origin, Rank
from horsies.config.writing import SAMPLE_VALUES, render, write_new

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
    "write_new",
]
