"""The `horsies` executable: parse, one call, render."""
