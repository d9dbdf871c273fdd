"""What happens, in which order: one file per lifecycle. No arithmetic, no client calls."""
