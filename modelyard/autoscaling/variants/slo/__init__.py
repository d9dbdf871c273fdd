"""The SLO form of VariantAutoscaling: replicas from load, a performance profile and latency targets."""
