"""Errors that end an export."""


class ExportError(Exception):
    """The exporter cannot go on; one line that says why and what to do."""


class DigestDiffersError(ExportError):
    """At a checkpoint the exporter's state and the node's are not the same."""
