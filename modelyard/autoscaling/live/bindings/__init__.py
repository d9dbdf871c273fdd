"""AutoscalingPolicyBindings between cluster and decision: collect, scrape, actuate, report."""
