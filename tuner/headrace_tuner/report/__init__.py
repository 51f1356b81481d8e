"""What people read of a study."""
