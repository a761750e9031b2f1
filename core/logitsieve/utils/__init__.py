"""Arrays, options and files as every package handles them."""
