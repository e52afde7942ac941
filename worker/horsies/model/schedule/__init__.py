"""Schedules: patterns, slot times, and what happens with each slot. Pure functions over frozen values."""
