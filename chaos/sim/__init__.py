"""The whole system in one process on virtual time: one seed is one run."""
