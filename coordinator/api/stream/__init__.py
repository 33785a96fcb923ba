"""A client process's stream of requests, beside its unary calls."""
