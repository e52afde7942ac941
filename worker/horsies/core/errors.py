"""Documented import path of `horsies.errors`."""

from horsies.errors import *  # noqa: F403
