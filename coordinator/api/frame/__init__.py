"""What every RPC shares: its handler, its request's bounds, its way to the shards, its answer."""
