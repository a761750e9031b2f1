"""Clients of every interface and hostile ones against running servers (`make chaos`)."""
