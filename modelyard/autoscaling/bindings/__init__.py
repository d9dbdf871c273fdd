"""Scaling by AutoscalingPolicy and AutoscalingPolicyBinding: metrics held at target values, with panic and windows."""
