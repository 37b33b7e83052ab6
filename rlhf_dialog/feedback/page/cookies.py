"""The page's cookies: random ids that the server has issued, and signed so that nobody chooses one."""

import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping, MutableMapping
from typing import Any

YEAR = 365 * 24 * 3600
ID = re.compile(r"[0-9a-f]{32}")
Headers = list[tuple[bytes, bytes]]


class SignedCookie:
    """A cookie with a random id, which scripts cannot read and other sites cannot send."""

    def __init__(self, name: str, secret: str):
        self.name, self._secret = name, secret

    def sign(self, person: str) -> str:
        """The cookie's value for an id."""
        signature = hmac.digest(self._secret.encode(), f"{self.name} {person}".encode(), "sha256").hex()[:32]
        return f"{person}.{signature}"

    def read(self, cookies: Mapping[str, str]) -> str | None:
        """The id in the cookies of a request, None when there is none of ours."""
        value = cookies.get(self.name, "")
        person = value[:32]
        is_ours = ID.fullmatch(person) and hmac.compare_digest(
            value.encode("utf-8", "replace"), self.sign(person).encode()
        )
        return person if is_ours else None

    def headers(self, person: str, is_secure: bool) -> Headers:
        """The header that gives an id to a browser."""
        secure = "; Secure" if is_secure else ""
        value = f"{self.name}={self.sign(person)}; Path=/; Max-Age={YEAR}; HttpOnly; SameSite=Strict{secure}"
        return [(b"set-cookie", value.encode())]


class People:
    """Who sends a request, by a signed cookie; a forgotten person gets another id."""

    MAX_RENEWED = 10_000

    def __init__(self, cookie: SignedCookie):
        self.cookie = cookie
        self._renewed: OrderedDict[str, None] = OrderedDict()

    def renew(self, person: str) -> None:
        """The next request with this person's id gets another one."""
        self._renewed[person] = None
        if len(self._renewed) > self.MAX_RENEWED:
            self._renewed.popitem(last=False)

    def with_id(self, scope: MutableMapping[str, Any], cookies: dict[str, str]) -> tuple[dict[str, Any], Headers]:
        """The request with a person's id, and the headers that give it to the browser where it is new."""
        person = self.cookie.read(cookies)
        if person is not None and person not in self._renewed:
            return dict(scope), []
        person = secrets.token_hex(16)
        pairs = cookies | {self.cookie.name: self.cookie.sign(person)}
        headers = [pair for pair in scope["headers"] if pair[0] != b"cookie"]
        headers.append((b"cookie", "; ".join(f"{name}={value}" for name, value in pairs.items()).encode("latin-1")))
        return {**scope, "headers": headers}, self.cookie.headers(person, scope.get("scheme") == "https")


class Sessions:
    """Whose the pages (a browser's tabs) are: the first person who sends an event from one. Gradio's streams are by page."""

    MOST = 100_000

    def __init__(self) -> None:
        self._people: OrderedDict[str, str] = OrderedDict()

    def belongs(self, session: str, person: str | None) -> bool:
        """Whether the page is this person's, or nobody's yet."""
        return self._people.get(session) in (None, person)

    def take(self, session: str, person: str) -> None:
        """The page is this person's from now on."""
        self._people[session] = person
        self._people.move_to_end(session)
        if len(self._people) > self.MOST:
            self._people.popitem(last=False)


def read_cookies(scope: MutableMapping[str, Any]) -> dict[str, str]:
    """The cookies of a request."""
    pairs = (
        pair.partition("=")
        for name, value in scope["headers"]
        if name == b"cookie"
        for pair in value.decode("latin-1").split(";")
    )
    return {key.strip(): content.strip() for key, _, content in pairs if key.strip()}
