"""Who tries passwords: wrong ones are counted by address, and by browser where one was once logged in."""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, MutableMapping
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any

from rlhf_dialog.feedback.page.cookies import Headers, SignedCookie
from rlhf_dialog.feedback.store.limits import Bucket, Limits


class Logins:
    """How soon somebody may try a password again. Who guesses from one address keeps nobody at another one out.

    Where all come from one address (a tunnel, a proxy that is not trusted), a browser that was once logged in has tries of its
    own, by a cookie that outlives the logout.
    """

    MOST = 10_000  # addresses and browsers whose tries are kept

    def __init__(self, limits: Limits, cookie: SignedCookie, clock: Callable[[], float] = time.monotonic):
        self._limits, self._cookie, self._clock = limits, cookie, clock
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def tries(self, address: str, cookies: Mapping[str, str]) -> Bucket:
        """What is left of the tries of who sends a request."""
        key = self._cookie.read(cookies) or address
        size = self._limits.logins
        bucket = self._buckets.setdefault(key, Bucket(size, size * self._limits.login_seconds, self._clock))
        self._buckets.move_to_end(key)
        if len(self._buckets) > self.MOST:
            self._buckets.popitem(last=False)
        return bucket

    def remembered(self, scope: MutableMapping[str, Any], cookies: Mapping[str, str]) -> Headers:
        """The header by which a browser that has just logged in is known later; one that is known keeps its id."""
        browser = self._cookie.read(cookies) or secrets.token_hex(16)
        return self._cookie.issued(browser, scope.get("scheme") == "https")


def address_of(scope: MutableMapping[str, Any], headers: Mapping[str, str], proxies: Collection[str]) -> str:
    """Where a request comes from: of what a trusted proxy sends, the last address in X-Forwarded-For that is none of theirs.

    Of IPv6 it is the network of 64 bits, which one household has.
    """
    peer = plain_address((scope.get("client") or ("",))[0])
    passed = [plain_address(one.strip()) for one in headers.get("x-forwarded-for", "").split(",")]
    for address in (peer, *reversed(passed)):
        peer = address or peer  # what is no address is not believed
        if address not in proxies:
            break
    is_wide = peer != "" and isinstance(ip_address(peer), IPv6Address)
    return str(ip_network(f"{peer}/64", strict=False)) if is_wide else peer


def plain_address(text: str) -> str:
    """An address in its usual form, also of IPv4 within IPv6; "" for anything else."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return ""
    return str(getattr(address, "ipv4_mapped", None) or address)
