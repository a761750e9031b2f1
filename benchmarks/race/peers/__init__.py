"""Methods that are raced against and are no part of the product: one file each."""
