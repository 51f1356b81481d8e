"""From the search to a verdict."""
