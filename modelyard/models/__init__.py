"""Models: where their files come from, how they get onto nodes, and what they are."""
