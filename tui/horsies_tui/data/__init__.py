"""What the screens read: the session with the database, the store of answers, pages and context."""
