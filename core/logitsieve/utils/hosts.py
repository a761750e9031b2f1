"""Which addresses stay on this machine."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether `host`, an IP address or a name, is this machine whoever resolves it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
