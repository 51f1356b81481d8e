"""The images of the embedded cluster. They are only names: all of them stand for this machine (pure)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from headrace_local.runtime.errors import NotFoundError

#: The user that our images run as when a pod names none, as in their Dockerfiles.
IMAGE_UID = 65532

_OURS = re.compile(
    r"""(?: (?: localhost | [a-z0-9-]+ (?:\.[a-z0-9-]+)+ ) (?: :\d+ )? / )?   # a registry's host
        (?: [a-z0-9._-]+ / )?                                                  # one folder of a registry
        headrace/ [a-z0-9._-]+
        (?: :[A-Za-z0-9_.-]+ )? (?: @sha256:[0-9a-f]{64} )?""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Image:
    """A name that stands for this machine. `uid` None means root, as in most images other than ours."""

    name: str
    uid: int | None

    @property
    def id(self) -> str:
        """In place of the content's digest, a hash of the name."""
        return "sha256:" + hashlib.sha256(self.name.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ImagePolicy:
    """Which references stand for this machine: `headrace/*`, and those in `extra` (without tags; for tests)."""

    extra: frozenset[str] = frozenset()

    def find(self, reference: str) -> Image:
        """The image of that name; NotFoundError with the reason, which the kubelet shows as ErrImagePull."""
        if _OURS.fullmatch(reference):
            return Image(reference, IMAGE_UID)
        if _without_tag(reference) in self.extra:
            return Image(reference, None)
        known = ", ".join(["headrace/*", *sorted(self.extra)])
        raise NotFoundError(
            f'image "{reference}" cannot be pulled: the embedded cluster has no image store and runs only images that '
            f"stand for this machine ({known}). Use another cluster (--context) for other images."
        )


def _without_tag(reference: str) -> str:
    name = reference.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.split(":")[0]
