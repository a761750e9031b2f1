"""gRPC services, and the handlers, ports and codec beneath them."""
