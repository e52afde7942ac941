"""Tasks: their list, their details and their attempts."""
