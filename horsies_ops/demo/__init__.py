"""`horsies demo`: the sample app at work on a database of its own, with a worker that is killed on the way."""
