"""What can be worked out from values alone: no I/O, no clock, no chance."""
