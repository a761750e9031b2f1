"""The HTTP port: metrics, probes, and the console for people."""
