"""The public contract: the Decoder protocol, requests, results, constraints and errors."""
