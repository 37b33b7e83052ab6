"""Who sends a request to the API."""

from dataclasses import dataclass

UNKNOWN = "unknown"  # in the place of a random id: all visitors, and all users of gateways that are not known, together


@dataclass(frozen=True)
class Caller:
    """`person` is the random id that the store hashes, and counts as one person; `user` a hash, where several share it."""

    person: str
    user: str | None
    role: str  # owner, visitor, user, teacher, gateway
