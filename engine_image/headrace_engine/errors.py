"""Errors that a person can act on: each says what, where, why and what to do. Exit code 2, no traceback."""

from __future__ import annotations

from headrace_core.errors import HeadraceError


class EngineError(HeadraceError):
    """The engine cannot start or go on; the message is one line for a person."""


class ModelError(EngineError):
    """The model cannot be loaded or is not supported."""


class SettingsError(EngineError):
    """A flag, a config file or the environment is wrong."""
