"""The client of the gRPC service."""
