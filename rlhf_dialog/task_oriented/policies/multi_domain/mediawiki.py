"""Pages of a wiki, over the network: the API of MediaWiki with its extension TextExtracts, as Wikipedia has it."""

import ipaddress
import json
import re
from collections.abc import Collection
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

from rlhf_dialog.errors import UserError
from rlhf_dialog.http_client import Client, EndedEarly, Refused, RequestLimits, TooLong, Unreachable
from rlhf_dialog.task_oriented.policies.multi_domain.encyclopedia import NEAREST, LookupFailed, WikiPage
from rlhf_dialog.user_code import TimeLimit

MAX_ANSWER = 1 << 21  # bytes
WIKIPEDIA = "https://en.wikipedia.org/w/api.php"
AGENT = "rlhf-dialog (a lookup in a dialogue)"
BROKEN = "the wiki gave an answer that cannot be read"
NOT_IN_TITLES = re.compile(r"[\x00-\x1f\x7f#<>\[\]|{}]+")  # `|` and U+001F would ask for several pages
NAT64 = ipaddress.ip_network("64:ff9b::/96")
HEADING = re.compile(r"^==(?!=)[ \t]*([^\n]*?)[ \t]*==[ \t]*$", re.MULTILINE)
SUBHEADING = re.compile(r"^===[^\n]*$", re.MULTILINE)


class MediaWiki:
    """A fetcher that asks a wiki: https only, no redirects, no proxies, nothing of the machine's own network.

    timeout_s: seconds for an answer, from the name's resolution to the last byte
    private_hosts: hosts of `url` that may have a private or loopback address, and be asked by plain http
    user_agent: what the wiki learns of who asks; Wikipedia wants a contact in it

    Raises UserError for arguments that cannot work; opens no connection before `fetch`.
    """

    def __init__(
        self, url: str = WIKIPEDIA, timeout_s: float = 5.0, private_hosts: Collection[str] = (), user_agent: str = AGENT
    ):
        private = {host.lower() for host in private_hosts}
        self.parts, self.timeout_s = _check_url(url, private), timeout_s
        self.may_be_private = self.parts.hostname in private
        if not re.fullmatch(r"[\x20-\x7e]+", user_agent):
            raise UserError(f"user_agent: {user_agent!r} must be one line of ASCII text")
        headers = {"User-Agent": user_agent, "Accept": "application/json"}
        self.client = Client(self.parts, headers, check_address=self._check_address)

    def fetch(self, title: str) -> WikiPage | list[str] | None:
        """The page; of a disambiguation page the titles that it links to. Raises LookupFailed."""
        title = NOT_IN_TITLES.sub(" ", title).strip()
        answer = self._get(
            action="query",
            titles=title,
            plnamespace=0,
            pllimit=50,
            prop="extracts|pageprops|links",
            ppprop="disambiguation",
            explaintext=1,
            redirects=1,
        )
        try:
            pages = answer.get("query", {}).get("pages", [])
            if not pages or pages[0].keys() & {"missing", "invalid", "special"}:
                return None
            if "disambiguation" in pages[0].get("pageprops", {}):
                links = [_text(link["title"]) for link in pages[0].get("links", [])]
                return sorted(links, key=lambda link: title.casefold() not in link.casefold()) or None
            return _page(_text(pages[0]["title"]), _text(pages[0]["extract"]))
        except (AttributeError, KeyError, IndexError, TypeError):
            raise LookupFailed(BROKEN) from None

    def suggest_titles(self, title: str) -> list[str]:
        """The titles that the wiki's search finds. Raises LookupFailed."""
        answer = self._get(action="opensearch", search=NOT_IN_TITLES.sub(" ", title), limit=NEAREST)
        try:
            return [_text(each) for each in answer[1][:NEAREST]]
        except (KeyError, IndexError, TypeError):
            raise LookupFailed(BROKEN) from None

    def _get(self, **query: Any) -> Any:
        target = f"{self.parts.path}?{urlencode({'format': 'json', 'formatversion': 2, **query})}"
        try:
            body = self.client.ask("GET", target, RequestLimits(self.timeout_s, MAX_ANSWER))
        except TimeLimit:
            raise LookupFailed(f"the wiki gave no answer within {self.timeout_s:g} seconds") from None
        except Unreachable:
            raise LookupFailed("the wiki cannot be reached") from None
        except Refused as error:
            raise LookupFailed(f"the wiki answered with status {error.status}") from None
        except TooLong:
            raise LookupFailed(f"the wiki answered with more than {MAX_ANSWER} bytes") from None
        except EndedEarly:
            raise LookupFailed(BROKEN) from None
        try:
            return json.loads(body)
        except ValueError:
            raise LookupFailed(BROKEN) from None

    def _check_address(self, address: str) -> None:
        if not self.may_be_private and not is_public(address):
            raise LookupFailed(f"{self.parts.hostname} has an address that is not public; private_hosts can allow it")


def is_public(address: str) -> bool:
    """Whether the IP address is one of the public internet."""
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in NAT64 else None
        ip = inner or ip.ipv4_mapped or ip.sixtofour or ip
    return ip.is_global and not ip.is_multicast


def _page(title: str, extract: str) -> WikiPage:
    summary, *parts = HEADING.split(extract)
    sections = {heading: SUBHEADING.sub("", text) for heading, text in zip(parts[::2], parts[1::2], strict=True)}
    return WikiPage(title, summary, {heading: text for heading, text in sections.items() if text.strip()})


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _check_url(url: str, private_hosts: Collection[str]) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_right = parts.hostname and parts.port != 0 and parts.username is None and not parts.query + parts.fragment
    except ValueError:
        is_right = False
    if not is_right or not re.fullmatch(r"[\x21-\x7e]+", url):
        raise UserError(f"url: {url!r} must be the address of a wiki's api.php, such as {WIKIPEDIA}")
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in private_hosts):
        raise UserError(f"url: {url!r} must begin with https://; plain http is for hosts of private_hosts only")
    return parts
