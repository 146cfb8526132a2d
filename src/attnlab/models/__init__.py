"""Models: the networks a mechanism is put into."""
