"""What the scheduler did: kept for explain, written down, and played again."""
