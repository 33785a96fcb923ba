"""Benchmarks of muster: `make bench NAME=failover`. Each prints a JSON object as its last line."""
