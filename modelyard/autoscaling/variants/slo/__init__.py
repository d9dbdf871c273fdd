"""Replicas from load, latency targets and a performance profile: the SLO form's, or the one that was learnt."""
