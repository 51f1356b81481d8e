"""How a service moves from one config to another."""
