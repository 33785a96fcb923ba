"""Real processes, and everything that can be done to them."""
