"""Digests and tokens: equal for equal input, different for different input."""

import pytest

from headrace_operator.cluster.hashing import (
    DIGEST_LENGTH,
    canonical,
    digest,
    service_token,
    template_revision,
    trial_token,
)

ROOT = "0123456789abcdef"


def test_the_order_of_keys_does_not_matter_the_order_of_items_does() -> None:
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    assert digest([1, 2]) != digest([2, 1])
    assert len(digest({})) == DIGEST_LENGTH


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_json_has_no_digest(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical(value)


@pytest.mark.parametrize(
    "other", [({"a": 2}, {"b": 1}, "t"), ({"a": 1}, {"b": 2}, "t"), ({"a": 1}, {"b": 1}, "another")]
)
def test_everything_that_needs_a_new_process_changes_the_revision(other: tuple[dict, dict, str]) -> None:
    template, boot, token = other
    assert template_revision(template, boot, token=token) != template_revision({"a": 1}, {"b": 1}, token="t")


def test_no_two_objects_share_a_token() -> None:
    tokens = {
        service_token(ROOT, namespace="a", service="b"),
        service_token(ROOT, namespace="b", service="a"),
        service_token(ROOT + "x", namespace="a", service="b"),
        trial_token(ROOT, namespace="a", run="b"),
    }
    assert len(tokens) == 4
    assert not any(ROOT in token for token in tokens)
