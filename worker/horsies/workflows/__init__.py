"""Runs of workflows: started, advanced, paused, resumed, ended, retried and healed. Any process may do any of it."""
