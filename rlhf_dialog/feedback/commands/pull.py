"""`rlhf-dialog feedback pull`: the ratings that people gave on another chat page, laid on the answers that are stored."""

from contextlib import closing
from typing import Any

from rlhf_dialog.commands.options import option
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.commands.bot import BotOptions
from rlhf_dialog.feedback.commands.files import log_import, sender_check
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.formats.open_webui import is_export, lay_ratings
from rlhf_dialog.http_client import Client, RequestFailed, address_parts, authorization
from rlhf_dialog.json_files import parse_json

EXPORT = "/api/v1/evaluations/feedbacks/all/export"
SECONDS, MAX_ANSWER = 600.0, 1 << 30  # bytes: a whole chat is beside each rating
TOKEN = (
    "the token must be an administrator's: in Open WebUI, Admin Settings, General, enable API keys, then make one in Settings, "
    "Account"
)
REMEDIES = {  # by the status of a refusal; of all others that the address may be wrong
    401: TOKEN,
    403: TOKEN,
    404: "give the address of Open WebUI itself, as a browser opens it",
}


class PullOptions(BotOptions):
    description = (
        "Add the ratings that people gave of the bot's answers in Open WebUI, which talks to the bot by its API. What was pulled "
        "before adds nothing; a rating that was changed there is added, and one that was deleted is withdrawn."
    )

    open_webui: str = option("address of Open WebUI, such as http://127.0.0.1:8080", metavar="URL")
    token_env: str = option("environment variable that holds an administrator's API key", metavar="NAME")


def run_pull(options: PullOptions) -> None:
    """Fetch the export, and store what is new."""
    parts = address_parts(options.open_webui, "--open_webui")
    address = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    if parts.query or parts.fragment:
        raise UserError(f"--open_webui: must end before the ? or #; give {address}")
    bot = Bot(options.run)
    client = Client(parts, authorization(options.token_env, "--token_env"), SECONDS, MAX_ANSWER)
    try:
        rows = _read(client.ask("GET", f"{parts.path.rstrip('/')}{EXPORT}"))
    except RequestFailed as error:
        remedy = REMEDIES.get(error.status or 0, "check the address, and that Open WebUI is running")
        raise UserError(f"--open_webui: {address} {error}; {remedy}") from None
    with closing(bot.store()) as store:
        log_import(address, lay_ratings(store, rows, sender_check(bot, store), address))


def _read(body: bytes) -> list[dict[str, Any]]:
    """The rows of the export. Raises RequestFailed for an answer that is something else, such as a page."""
    try:
        rows: list[dict[str, Any]] = parse_json(body, list[dict[str, Any]])
    except ValueError:
        rows = [{}]
    if not all(map(is_export, rows)):
        raise RequestFailed("answered with what is not Open WebUI's export of feedback", False, status=404)
    return rows
