"""Exit with 0 if an HTTP page answers 200: probe.py http://127.0.0.1:9090/healthz.

For health checks within the image, which has no curl. No proxy of the environment is asked.
"""

from __future__ import annotations

import http.client
import sys
from urllib.parse import urlsplit

PATIENCE_S = 4.0


def answers(url: str) -> bool:
    """Return True if GET answers 200 within PATIENCE_S."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE_S)
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(0 if answers(sys.argv[1]) else 1)
