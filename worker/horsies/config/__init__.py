"""Loads settings from horsies.toml, the environment, code and command-line options; writes horsies.toml."""

from horsies.config.keys import KEYS, SECTION_KEYS, SettingKey
from horsies.config.loader import LoadedSettings, load_settings
from horsies.config.render import SAMPLE_VALUES, SettingRow, describe_settings, render_toml, write_config_file
from horsies.config.sources import FILE_NAME, Origin, Precedence, working_folder

__all__ = [
    "FILE_NAME",
    "KEYS",
    "SAMPLE_VALUES",
    "SECTION_KEYS",
    "LoadedSettings",
    "Origin",
    "Precedence",
    "SettingKey",
    "SettingRow",
    "describe_settings",
    "load_settings",
    "render_toml",
    "working_folder",
    "write_config_file",
]
