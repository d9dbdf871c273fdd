"""The queueing model of one replica: predicted latency at a rate, and the highest rate within latency targets."""
