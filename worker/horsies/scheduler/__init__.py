"""Schedules at run time: firing due slots, and syncing the definitions of an app."""
