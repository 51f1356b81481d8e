"""Who may write the records. Pure: the lease is a value in the store, compared and swapped by its version.

No two clocks are compared: a lease has run out when its text has not changed for its whole length on the watcher's own
clock. The holder renews it at a third of that.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

LEASE_KEY = "lease.json"
LEASE_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """`holder` is a process, `host` its pod; `renewals` makes each renewal another text."""

    holder: str = ""
    host: str = ""
    renewals: int = 0

    def encode(self) -> str:
        """The entry's text."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def decode(cls, text: str | None) -> Lease:
        """The lease in an entry; a free one where there is none or it cannot be read."""
        try:
            values = json.loads(text or "{}")
            return cls(
                holder=str(values.get("holder", "")),
                host=str(values.get("host", "")),
                renewals=int(values.get("renewals", 0)),
            )
        except (ValueError, TypeError, AttributeError):
            return cls()

    def renewed(self) -> Lease:
        """The same holder's next lease."""
        return Lease(holder=self.holder, host=self.host, renewals=self.renewals + 1)


def may_take(seen: Lease, mine: Lease, *, unchanged_for: float) -> bool:
    """Whether `mine` may replace `seen`, which has not changed for that many seconds.

    A lease of my own host is a dead one: a pod runs one tuner at a time, so its holder was killed before I started.
    """
    return not seen.holder or seen.holder == mine.holder or seen.host == mine.host or unchanged_for >= LEASE_SECONDS
