"""Who sends a request to the API: the holder of a key, a user whom a gateway names, a visitor, or the owner of the machine."""

from collections.abc import Mapping
from dataclasses import dataclass

from rlhf_dialog.feedback.door.requests import ApiError
from rlhf_dialog.feedback.store.people import People
from rlhf_dialog.feedback.store.store import Store

UNKNOWN = "unknown"  # in the place of a random id: all visitors, and all users of gateways that are not known, together
USER_HEADER = "X-OpenWebUI-User-Id"
MAX_USER_CHARS = 256


@dataclass(frozen=True)
class Caller:
    """`person` is the random id that the store hashes, and counts as one person; `user` a hash, where several share it."""

    person: str
    user: str | None
    role: str  # owner, visitor, user, teacher, gateway


class Callers:
    """Who may call. While nobody has a key, `owner` (the random id of this machine's terminal; None: nobody) is who calls.

    `visitors`: whether a request without a key is answered once there are keys. `knows_users`: whether each user of a gateway is
    a person, as with a company's login, or all of them together are one.
    """

    def __init__(
        self, people: People, store: Store, owner: str | None, visitors: bool = False, knows_users: bool = False
    ):
        self._people, self._store, self._owner = people, store, owner
        self._visitors, self._knows_users = visitors, knows_users

    def find(self, headers: Mapping[str, str], user: str | None = None) -> Caller:
        """The sender of a request with these headers, whose body names the `user`. Raises ApiError: 401, 400."""
        named = headers.get(USER_HEADER, "").strip() or None
        if user and named and user != named:
            raise ApiError(400, f"user: is not that of the header {USER_HEADER}; send one of them", param="user")
        named = named or user or None
        if named and len(named) > MAX_USER_CHARS:
            raise ApiError(400, f"user: has {len(named)} characters; send at most {MAX_USER_CHARS}", param="user")
        if self._owner is not None and not self._people.has_keys():
            return Caller(self._owner, self._hash(self._owner, named), "owner")
        scheme, _, key = headers.get("Authorization", "").partition(" ")
        if not scheme and self._visitors:
            self._refuse_names(named)
            return Caller(UNKNOWN, None, "visitor")
        person = self._people.find(key.strip()) if scheme.lower() == "bearer" else None
        if person is None:
            what = "is wrong or was revoked" if scheme else "is missing"
            raise ApiError(
                401,
                f"the key {what}; send one as Authorization: Bearer KEY, or ask the bot's owner for one",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if person.role != "gateway":
            self._refuse_names(named)
            return Caller(person.person, None, person.role)
        if named and self._knows_users:
            return Caller(f"{person.person} {named}", None, "gateway")
        return Caller(UNKNOWN, self._hash(person.person, named), "gateway")

    def may_be(self, user: str, person: str, shared_by: str | None) -> bool:
        """Whether a dialogue with the stored hashes `person` and `shared_by` may be that of a gateway's user of this name.

        One of another user may not; those of a person with a key of their own tell nothing of users.
        """
        people = [one for one, _ in self._people.list()]
        gateways = [one.person for one in people if one.role == "gateway"]
        if not gateways:
            return True
        owners = [self._owner] if self._owner else []
        if shared_by is not None:
            return shared_by in {self._hash(one, user) for one in (*owners, *gateways)}
        alone = [*owners, UNKNOWN, *(one.person for one in people if one.role != "gateway")]
        named = [f"{one} {user}" for one in gateways]
        return person in map(self._store.hash_person, (*alone, *named))

    def _hash(self, person: str, named: str | None) -> str | None:
        return None if named is None else self._store.hash_outside(f"user of {person} {named}")

    def _refuse_names(self, named: str | None) -> None:
        if named:
            raise ApiError(
                400, f"user: only the key of a gateway names users; leave user and {USER_HEADER} out", param="user"
            )
