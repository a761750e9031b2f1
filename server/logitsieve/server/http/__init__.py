"""The HTTP port: metrics, probes, and a console if one is installed."""
