"""The KServe v2 inference protocol."""
