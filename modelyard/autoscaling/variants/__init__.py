"""VariantAutoscalings: from signals to targets, by saturation, by tokens and by SLO."""
