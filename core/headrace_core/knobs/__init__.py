"""The knob table, and a full config from what was set."""
