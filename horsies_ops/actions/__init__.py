"""What operators do: choose tasks, see what would become of them, then do it, in batches and on record."""
