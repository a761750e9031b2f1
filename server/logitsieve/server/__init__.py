"""The gRPC service: a folder of indexes, answered over the network."""

from logitsieve.server.app import Server, create_server, serve
from logitsieve.server.config import ServeConfig

__all__ = ["ServeConfig", "Server", "create_server", "serve"]
