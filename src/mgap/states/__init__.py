"""Hidden states: collecting them, and the subspaces they span."""
