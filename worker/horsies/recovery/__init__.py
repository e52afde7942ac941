"""Finding work whose owner fell silent, and putting it right."""
