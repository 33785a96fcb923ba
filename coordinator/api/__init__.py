"""The gRPC services: their RPCs, the frame that all of these share, and the limits on callers."""
