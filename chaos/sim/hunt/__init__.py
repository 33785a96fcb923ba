"""Hunts broken builds with the simulator, and shortens a failing run."""
