"""Durable records of a study."""
