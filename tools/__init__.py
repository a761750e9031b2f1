"""Programs to run by hand that look for what is wrong; they share the helpers of `tests`."""
