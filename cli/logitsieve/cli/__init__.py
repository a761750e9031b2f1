"""The `logitsieve` command."""
