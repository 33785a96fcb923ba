"""Channels to the nodes, who coordinates a group, and one call until it is answered."""
