"""The text output of a study."""
