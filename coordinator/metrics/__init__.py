"""The metrics by name, where each is measured, and the page that Prometheus reads."""
