"""Everything operators look at: SELECTs only, in read-only transactions, as frozen rows."""
