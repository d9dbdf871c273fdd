"""The demonstration: one model, two accelerators, real traffic, and the deployed flow that keeps it right-sized."""
