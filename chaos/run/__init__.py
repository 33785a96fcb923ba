"""The runner: `muster chaos run` starts a world and workloads, injects faults, and judges."""
