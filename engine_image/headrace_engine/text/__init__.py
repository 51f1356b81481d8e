"""From tokens to text, piece by piece, up to the first stop string."""
