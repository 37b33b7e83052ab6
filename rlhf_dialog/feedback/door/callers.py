"""Who sends a request to the API."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Caller:
    """`person` is the random id that the store hashes; `user`: a hash, where several share it."""

    person: str
    user: str | None
    role: str  # owner, visitor, user, teacher, gateway
