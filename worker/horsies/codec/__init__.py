"""Between Python values and what is stored: typed arguments and results as plain JSON, fingerprints, ids."""
