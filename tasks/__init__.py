"""One outside call each, batched, as Prefect tasks. No decisions."""
