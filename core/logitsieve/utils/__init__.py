"""Arrays, options and files, shared by all packages."""
