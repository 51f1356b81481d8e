"""What the scheduler did: its history for explain, recordings of it, and their replay."""
