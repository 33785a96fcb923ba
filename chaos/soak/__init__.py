"""Hours of moderate load, and whether anything grows meanwhile."""
