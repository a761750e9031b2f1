"""Data structures over the rows of W that follow an optimizer."""
