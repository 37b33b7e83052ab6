"""Whose wrong passwords are counted together: those of one address, or of one browser that was once logged in."""

import pytest

from rlhf_dialog.feedback.page.cookies import SignedCookie
from rlhf_dialog.feedback.page.logins import Logins, address_of
from rlhf_dialog.feedback.store.limits import Limits


@pytest.mark.parametrize(
    ("peer", "passed", "wanted"),
    [
        ("192.0.2.1", "198.51.100.9", "192.0.2.1"),  # who is no proxy of ours may write what they like
        ("127.0.0.1", "198.51.100.9", "198.51.100.9"),
        ("127.0.0.1", "1.1.1.1, 198.51.100.9", "198.51.100.9"),  # the first one is what the client wrote
        ("127.0.0.1", "198.51.100.9, 10.0.0.2", "198.51.100.9"),  # two proxies
        ("127.0.0.1", "198.51.100.9, nonsense", "127.0.0.1"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.1", "2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("::ffff:127.0.0.1", "198.51.100.9", "198.51.100.9"),
        ("2001:db8::9", "", "2001:db8::/64"),
    ],
)
def test_the_address_behind_a_proxy(peer, passed, wanted):
    headers = {"x-forwarded-for": passed} if passed else {}
    assert address_of({"client": (peer, 1)}, headers, {"127.0.0.1", "10.0.0.2"}) == wanted
    assert address_of({"client": (peer, 1)}, headers, ()) == address_of({"client": (peer, 1)}, {}, ())


def test_only_so_many_addresses_are_remembered(monkeypatch):
    monkeypatch.setattr(Logins, "MOST", 2)
    logins = Logins(Limits(logins=1), SignedCookie("a", "s"), clock=lambda: 0.0)
    logins.tries("1", {}).take()
    assert logins.tries("1", {}).wait() > 0
    assert logins.tries("2", {}).wait() == logins.tries("3", {}).wait() == 0
    assert len(logins._buckets) == 2
