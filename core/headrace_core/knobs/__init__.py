"""The knob table, and full configs built from it."""
