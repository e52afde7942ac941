"""Supervised child processes: started, given tasks, watched and replaced."""
