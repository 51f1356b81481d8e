"""The error of the embedded cluster, written so that people can act on it."""

from __future__ import annotations

from headrace_core.errors import HeadraceError


class LocalError(HeadraceError):
    """A failure of the embedded cluster: what failed, why, and what to do about it.

    `detail` is verbatim output of another program (the end of a log, a compiler's messages).
    """

    def __init__(self, what: str, *, why: str = "", todo: str = "", detail: str = "") -> None:
        self.what = what
        self.why = why
        self.todo = todo
        self.detail = detail
        super().__init__(what)

    def __str__(self) -> str:
        parts = [self.what, self.why, self.detail, self.todo]
        return "\n".join(part for part in parts if part)
