"""The forward and backward passes that the losses share."""
