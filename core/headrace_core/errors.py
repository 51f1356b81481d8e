"""The base of every error that is meant for a person."""

from __future__ import annotations


class HeadraceError(Exception):
    """Something cannot be done. The message says what, where, why and what to do; a command prints it as one line."""
