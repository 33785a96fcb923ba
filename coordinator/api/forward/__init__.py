"""Passes calls of clients to their coordinator, on another node (ADR 35)."""
