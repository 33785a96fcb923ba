"""The gRPC services: what a call is checked for, what it waits for, and what it answers."""
