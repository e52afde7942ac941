"""What becomes of work whose owner fell silent."""
