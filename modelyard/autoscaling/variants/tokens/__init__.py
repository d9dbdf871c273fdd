"""The token analyzer: load and capacity of a model in tokens of KV cache instead of percentages."""
