"""The process that runs tasks: `python -m horsies.engine.child`, started by the pool and by nobody else."""
