"""The loop without Prefect: collect, decide, actuate, report."""
