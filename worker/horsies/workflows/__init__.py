"""Runs of workflows: started, advanced, paused, resumed, cancelled, retried and healed, by any process."""
