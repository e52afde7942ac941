"""The worker: claims tasks, runs them in supervised processes, and records how they ended."""
