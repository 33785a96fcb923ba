"""Consensus: PySyncObj behind two protocols; entries are opaque bytes."""
