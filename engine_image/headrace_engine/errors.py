"""Errors for people, without a traceback: each says what, where, why and what to do. Exit code 2."""

from __future__ import annotations


class EngineError(Exception):
    """The engine cannot start or continue. The message is one line."""


class ModelError(EngineError):
    """The model cannot be loaded or is not supported."""


class SettingsError(EngineError):
    """A flag, a config file or the environment is wrong."""
