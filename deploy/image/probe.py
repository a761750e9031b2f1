"""Exit with 0 if a page of the HTTP port answers 200: probe.py http://127.0.0.1:8080/healthz.

It also tries HTTPS, which a public console has. LOGITSIEVE_SERVE_HTTP_PORT overrides the port.
"""

import os
import ssl
import sys
from http.client import OK, HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

PATIENCE_S = 2.0


def answers(connection: HTTPConnection, path: str) -> bool:
    try:
        connection.request("GET", path)
        return connection.getresponse().status == OK
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def main() -> int:
    parts = urlsplit(sys.argv[1])
    host = parts.hostname or "127.0.0.1"
    port = int(os.environ.get("LOGITSIEVE_SERVE_HTTP_PORT") or parts.port or 8080)
    context = ssl.create_default_context()
    context.check_hostname = False  # no certificate names loopback
    context.verify_mode = ssl.CERT_NONE
    plain = HTTPConnection(host, port, timeout=PATIENCE_S)
    secure = HTTPSConnection(host, port, timeout=PATIENCE_S, context=context)
    return 0 if answers(plain, parts.path) or answers(secure, parts.path) else 1


if __name__ == "__main__":
    sys.exit(main())
