"""Performance profiles of engines: fitted to measurements, checked against new ones."""
