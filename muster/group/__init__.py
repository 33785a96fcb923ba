"""A membership of a group: the protocol without I/O, and what carries it out for the user."""
