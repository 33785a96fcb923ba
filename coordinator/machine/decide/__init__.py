"""Decides each command of a group or topic, in one file per kind: events and an answer."""
