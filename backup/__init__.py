"""Backups of a cluster: taken while it serves, verified, and restored into a new cluster."""
