"""A gRPC server of a few methods, in threads of its own."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc


@contextmanager
def answering(service: str, **methods: grpc.RpcMethodHandler) -> Iterator[str]:
    """The address of a server that has these methods of a service."""
    server = grpc.server(ThreadPoolExecutor(4))
    handler = grpc.method_handlers_generic_handler(service, methods)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
