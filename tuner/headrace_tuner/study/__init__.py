"""The phases of a study, and its search."""
