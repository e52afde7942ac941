"""Sending tasks and waiting for their results, for programs that do not run them."""
