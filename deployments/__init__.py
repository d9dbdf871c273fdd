"""How Modelyard itself is installed: server profile, work pool, automations, self-test."""
