"""Reads of the toolkit: SELECT statements in read-only transactions, returned as frozen rows."""
