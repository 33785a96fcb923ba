"""What can be done to a world of real processes: each fault with what it needs and how it heals."""
