"""Planned load: arrivals, lengths, requests."""
