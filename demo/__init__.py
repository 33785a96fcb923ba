"""`muster demo`: real work on a real cluster, with faults, and checks that can fail."""
