"""Checks of every run, by the simulator's own account and by what its clients saw."""
