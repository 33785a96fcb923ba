"""The code that every RPC shares: handler, bounds, routing to the shards, answer."""
