"""List of workflow runs and the graph of one run."""
