"""Writes that only tests do: merge patches, as a person's `kubectl patch`, and server-side apply of a status."""

import json
from typing import Any

from headrace_client.kube import Kube
from headrace_client.resources import ApiResource, resource_of


async def merge_patch(
    kube: Kube, res: ApiResource, name: str, namespace: str, *, patch: Any, subresource: str = ""
) -> dict[str, Any]:
    path = res.path(namespace, name, subresource=subresource)
    answer: dict[str, Any] = json.loads(
        await kube.raw("PATCH", path, body=patch, content_type="application/merge-patch+json")
    )
    return answer


async def apply_status(kube: Kube, body: dict[str, Any], *, field_manager: str) -> dict[str, Any]:
    metadata = body["metadata"]
    path = resource_of(body).path(metadata["namespace"], metadata["name"], subresource="status")
    answer: dict[str, Any] = json.loads(
        await kube.raw(
            "PATCH",
            f"{path}?fieldManager={field_manager}&force=true",
            body=body,
            content_type="application/apply-patch+yaml",
        )
    )
    return answer
