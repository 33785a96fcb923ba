"""The faults of a run: the list that is drawn before it begins, and each kind of fault."""
