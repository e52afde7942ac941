"""The program of a child process, `python -m horsies.engine.child`; only the pool starts it."""
