"""What a study does next, and the search behind it."""
