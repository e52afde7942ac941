"""The operators' toolkit: reads, actions and the `horsies` command line."""
