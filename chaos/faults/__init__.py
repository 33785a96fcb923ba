"""The faults of a world of real processes: what each needs, how it is injected and healed."""
