"""What the unit tests of several packages share."""

from fake_openai import server

__all__ = ["server"]
