"""Bytes on disk and in memory: what a node keeps, and when it is durable."""
