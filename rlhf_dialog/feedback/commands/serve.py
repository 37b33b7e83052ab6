"""`rlhf-dialog feedback serve`: the page of a bot in a browser."""

import logging
import re
import socket
from contextlib import ExitStack, closing
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from rlhf_dialog.commands.command_line import check_device
from rlhf_dialog.commands.options import PrecisionOption, option
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.commands.bot import BotOptions
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.settings import read_settings

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


def run_serve(options: ServeOptions) -> None:
    """Serve the page until Ctrl-C or SIGTERM."""
    if find_spec("gradio") is None:
        raise UserError('the page needs gradio; install it from the checkout: pip install -e ".[chat]"')
    check_device(options.device)
    logins = None if options.auth is None else read_logins(options.auth)
    for name in options.allow_host:
        if not re.fullmatch(r"[\w.-]+", name):
            raise UserError(
                f"--allow_host {name}: give a name alone, without http:// and port: chat.example.org, for example"
            )
    family, address = resolve_host(options.host, options.port)
    if logins is None and not is_loopback(address):
        raise UserError(
            f"--host {options.host}: opens the page to other machines; give --auth USER:PASSWORD, or --auth FILE, so that only "
            "people who know a password can use it"
        )
    with ExitStack() as stack:
        bot = Bot(options.run)
        settings = read_settings(bot.settings_path)
        try:
            is_v6 = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
            listening = socket.create_server(address, family=family, dualstack_ipv6=is_v6)
        except OSError as error:
            raise UserError(
                f"--host {options.host}, --port {options.port}: {error}; choose another port, or any free one with --port 0"
            ) from error
        stack.callback(listening.close)
        store = stack.enter_context(closing(bot.store()))
        from rlhf_dialog.feedback.page.page import FeedbackPage, page_server
        from rlhf_dialog.feedback.sessions.batched_generation import Answering
        from rlhf_dialog.feedback.sessions.http_requests import THIS_MACHINE

        answering = stack.enter_context(
            Answering(bot, device=options.device, adjust=lambda agent: agent.set_precision(options))
        )
        version, _ = answering.introduction()
        hosts = None if logins else {*THIS_MACHINE, options.host.strip("[]"), *options.allow_host}
        page = FeedbackPage(store, answering, logins, settings, hosts)
        host, port = listening.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        print(f"{bot.folder}: version {version} answers on {url} (Ctrl-C ends)", flush=True)
        if not is_loopback(address):
            logger.warning(
                "every machine that reaches %s can open this page and try passwords; they and all texts travel readable, so put "
                "a proxy with https before it",
                url,
            )
        page_server(page.app, SECONDS_TO_END).run(sockets=[listening])


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
    """Whether only this machine reaches the address of a socket."""
    return ip_address(str(address[0]).partition("%")[0]).is_loopback
