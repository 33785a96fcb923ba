"""Listeners for tests."""

import muster


class Calls(muster.RebalanceListener):
    """Made of functions: `Calls(lost=lambda group, assignment: ...)`."""

    def __init__(self, **functions):
        vars(self).update(functions)


class Journal(muster.RebalanceListener):
    """Writes down what it was told: (what, generation)."""

    def __init__(self, **functions):
        self.lines = []
        self.told = []
        vars(self).update(functions)

    def _write(self, what, assignment):
        self.lines.append((what, assignment.generation))
        self.told.append((what, assignment.generation, assignment.partitions))

    def assigned(self, group, assignment):
        self._write("assigned", assignment)

    def revoked(self, group, assignment):
        self._write("revoked", assignment)

    def lost(self, group, assignment):
        self._write("lost", assignment)
