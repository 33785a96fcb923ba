"""One replica of one shard: PySyncObj's core, and in layers what makes it safe."""
