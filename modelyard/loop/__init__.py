"""The loop without Prefect: collect, decide, actuate, report. Called by tasks/ and by the command line."""
