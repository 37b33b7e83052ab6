"""`rlhf-dialog feedback serve`: the page of a bot in a browser, and its API for other programs."""

import logging
import re
import socket
from contextlib import ExitStack, closing
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_dialog.commands.command_line import check_device
from rlhf_dialog.commands.options import PrecisionOption, option
from rlhf_dialog.commands.terminal_state import terminal_person
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.commands.bot import BotOptions
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.people import People
from rlhf_dialog.feedback.store.settings import read_settings

if TYPE_CHECKING:
    from starlette.types import ASGIApp

logger = logging.getLogger(__name__)
PORT = 7860
MIN_PASSWORD = 8
SECONDS_TO_END = 2  # for requests that are being answered when the server ends


class ServeOptions(PrecisionOption, BotOptions):
    port: int = option(f"port; 0: any free one (default: {PORT})", PORT)
    host: str = option("address to listen on (default: 127.0.0.1, this machine alone)", "127.0.0.1")
    auth: str | None = option(
        "who may use the page; a file has one user:password per line. Required with another --host",
        metavar="USER:PASSWORD|FILE",
    )
    allow_host: tuple[str, ...] = option(
        "host name under which the page may be opened, e.g. a proxy's; with --auth every name is allowed. Repeatable",
        metavar="NAME",
        form="repeated",
    )
    api: bool = option("answer OpenAI's clients too, below /v1; see docs/FEEDBACK.md", False)
    no_page: bool = option("with --api: no page, so gradio is not needed", False)
    allow_origin: tuple[str, ...] = option(
        "with --api: a web site whose scripts may use it, such as https://chat.example.org. Repeatable",
        metavar="URL",
        form="repeated",
    )
    visitors: bool = option(
        "with --api: once somebody has a key, answer also who has none; all of them are one person", False
    )
    users: str = option(
        "with --api: whether each user that a gateway names is a person, as with a company's login, or all of them "
        "together are one (default)",
        "unknown",
        choices=("known", "unknown"),
    )


def run_serve(options: ServeOptions) -> None:
    """Serve page and API until Ctrl-C or SIGTERM."""
    logins, family, address = _check(options)
    with ExitStack() as stack:
        bot = Bot(options.run)
        settings = read_settings(bot.settings_path)
        people = People.load(bot.folder)
        is_private = is_loopback(address) and not options.allow_host
        if options.api and not (is_private or options.visitors or people.has_keys()):
            raise UserError(
                "--api: is open to other machines by --host or --allow_host; make keys for those who may use it with "
                "`rlhf-dialog feedback invite NAME`, or answer everybody with --visitors"
            )
        listening = stack.enter_context(closing(_listen(options, family, address)))
        store = stack.enter_context(closing(bot.store()))
        from rlhf_dialog.feedback.sessions.batched_generation import Answering
        from rlhf_dialog.feedback.sessions.http_requests import THIS_MACHINE

        answering = stack.enter_context(
            Answering(bot, device=options.device, adjust=lambda agent: agent.set_precision(options))
        )
        version, _ = answering.introduction()
        hosts = {*THIS_MACHINE, options.host.strip("[]"), *options.allow_host}  # under which page and API may be opened
        page = api = None
        if not options.no_page:
            from rlhf_dialog.feedback.page.page import FeedbackPage

            page = FeedbackPage(store, answering, logins, settings, None if logins else hosts).app
        if options.api:
            from rlhf_dialog.feedback.door.app import Door
            from rlhf_dialog.feedback.door.callers import Callers
            from rlhf_dialog.feedback.door.guard import Guard, check_origin

            owner = terminal_person() if is_private else None  # who calls while nobody has a key
            callers = Callers(people, store, owner, options.visitors, options.users == "known")
            door = Door(bot, store, answering, callers, settings)
            stack.callback(door.answers.close)
            api = Guard(door.app, settings, hosts, [check_origin(origin) for origin in options.allow_origin])

        host, port = listening.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        what = f"{url}v1" if options.no_page else f"{url}, the API is {url}v1" if options.api else url
        print(f"{bot.folder}: version {version} answers on {what} (Ctrl-C ends)", flush=True)
        if not is_loopback(address):
            logger.warning(
                "every machine that reaches %s can open it and try passwords and keys; they and all texts travel readable, so "
                "put a proxy with https before it",
                url,
            )
        app: Any = _beside(page, api) if page and api else page or api
        http_server(app, SECONDS_TO_END).run(sockets=[listening])


def _check(options: ServeOptions) -> tuple[list[tuple[str, str]] | None, int, Any]:
    """The logins, and the family and the address of the socket. Raises UserError for options that cannot be used together."""
    if options.no_page and not options.api:
        raise UserError("--no_page: nothing is left to serve; add --api")
    for package, part, is_served in (("gradio", "page", not options.no_page), ("uvicorn", "API", options.api)):
        if is_served and find_spec(package) is None:
            raise UserError(f'the {part} needs {package}; install it from the checkout: pip install -e ".[chat]"')
    check_device(options.device)
    logins = None if options.auth is None else read_logins(options.auth)
    for name in options.allow_host:
        if not re.fullmatch(r"[\w.-]+", name):
            raise UserError(
                f"--allow_host {name}: give a name alone, without http:// and port: chat.example.org, for example"
            )
    family, address = resolve_host(options.host, options.port)
    if logins is None and not is_loopback(address) and not options.no_page:
        raise UserError(
            f"--host {options.host}: opens the page to other machines; give --auth USER:PASSWORD, or --auth FILE, so that only "
            "people who know a password can use it"
        )
    return logins, family, address


def _listen(options: ServeOptions, family: int, address: Any) -> socket.socket:
    try:
        is_v6 = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, dualstack_ipv6=is_v6)
    except OSError as error:
        raise UserError(
            f"--host {options.host}, --port {options.port}: {error}; choose another port, or any free one with --port 0"
        ) from error


def _beside(page: "ASGIApp", api: "ASGIApp") -> "ASGIApp":
    """Requests below /v1/ go to the API, all others to the page."""

    async def choose(scope: Any, receive: Any, send: Any) -> None:
        is_for_api = scope["type"] == "http" and scope["path"].startswith("/v1/")
        await (api if is_for_api else page)(scope, receive, send)

    return choose


def http_server(app: "ASGIApp", seconds_to_end: int) -> Any:
    """A server that waits so long for open requests; `app` logs what fails, without what strangers wrote."""
    import uvicorn

    config = uvicorn.Config(
        app,
        ws="none",
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=seconds_to_end,
    )
    return uvicorn.Server(config)


def read_logins(auth: str) -> list[tuple[str, str]]:
    """The names and passwords of `user:password`, or of a file of such lines. Raises UserError."""
    path = Path(auth).expanduser()
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else [auth]
    except (OSError, UnicodeError) as error:
        raise UserError(f"--auth {auth}: cannot be read ({error}); a text file has one user:password a line") from error
    logins = []
    for number, line in enumerate(map(str.strip, lines), 1):
        user, _, password = line.partition(":")
        if (line or len(lines) == 1) and not (user and len(password) >= MIN_PASSWORD):
            where = f"{path}, line {number}" if path.is_file() else "--auth"
            raise UserError(
                f"{where}: wanted user:password with a password of at least {MIN_PASSWORD} characters, or a file of such lines"
            )
        logins += [(user, password)] if line else []
    return logins


def resolve_host(host: str, port: int) -> tuple[int, Any]:
    """The family and the address of a socket. Raises UserError."""
    if not 0 <= port < 1 << 16:
        raise UserError(f"--port {port}: give 0 to 65535")
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"--host {host}: is not an address of this machine ({error}); give 127.0.0.1, for example"
        ) from error
    family, _, _, _, address = addresses[0]
    return family, address


def is_loopback(address: Any) -> bool:
    return ip_address(str(address[0]).partition("%")[0]).is_loopback
