"""Errors for people, without a traceback: each says what, where, why and what to do. Exit code 2."""

from __future__ import annotations

from typing import ClassVar

from headrace_api.engine_exit import ExitKind
from headrace_core.errors import HeadraceError


class EngineError(HeadraceError):
    """The engine cannot start or continue. The message is one line; `exit_kind` is for the operator."""

    exit_kind: ClassVar[ExitKind] = ExitKind.OTHER


class ModelError(EngineError):
    """The model cannot be loaded or is not supported."""

    exit_kind = ExitKind.MODEL


class ModelNotFoundError(ModelError):
    """There is nothing at the path of the model."""

    exit_kind = ExitKind.MODEL_NOT_FOUND


class SettingsError(EngineError):
    """A flag, a config file or the environment is wrong."""

    exit_kind = ExitKind.SETTINGS
