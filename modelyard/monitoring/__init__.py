"""Generator of the dashboards, alerts and monitors that ship. Needs the extra ``dev``."""
