"""What must hold in every run, checked at every step by the simulator's own account."""
