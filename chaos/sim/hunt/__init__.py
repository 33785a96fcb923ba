"""How the simulator seeks broken builds, and makes a failing run shorter."""
