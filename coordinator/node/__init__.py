"""The process of a node: its configuration, assembly, start and end. It alone composes the rest."""
