"""The data layer of the screens: connection, live queries, task pages and shared context."""
