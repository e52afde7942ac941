"""`python -m horsies_ops.cli` is the `horsies` executable."""

from horsies_ops.cli.main import main

main()
