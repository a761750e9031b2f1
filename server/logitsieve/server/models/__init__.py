"""Model versions: found, loaded, named and released."""
