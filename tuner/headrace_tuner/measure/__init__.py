"""One measured window."""
