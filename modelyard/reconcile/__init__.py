"""The kernel: what every lifecycle shares between its pure plan and the cluster."""
