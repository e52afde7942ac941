"""What is about to be done, shown before it is done."""
