"""What goes wrong in a world of real processes."""


class WorldError(Exception):
    """A node ended, a condition did not come true in time, or the machine refused something."""
