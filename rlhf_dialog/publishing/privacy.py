"""What must not leave this machine: where things are on it, and tokens."""

import json
import os
import re
from collections.abc import Collection
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import unquote

from huggingface_hub import get_token

from rlhf_dialog.config.problems import SECRET
from rlhf_dialog.data.hub import is_local
from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import map_leaves, parse_json

PLACE = re.compile(r"""(?<![\w/.~:])(?:~[\w.-]*|\.{1,2}|[A-Za-z]:)?[/\\][^\s'"`,;()\[\]{}|]*[\w.-]""")
URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"`,;()]+", re.IGNORECASE)
LOCAL_KEYS = (
    "_name_or_path",
    "name_or_path",
    "tokenizer_file",
    "special_tokens_map_file",
    "is_local",
    "local_files_only",
)
TOKEN = re.compile(
    rb"\b(?:hf_[A-Za-z0-9]{30,}|gh[oprsu]_[A-Za-z0-9]{36,}|github_pat_\w{40,}|glpat-[\w-]{20,}|sk-[\w-]{40,}"
    rb"|xox[abeoprs]-[\w-]{20,}|AIza[\w-]{35}|(?:AKIA|ASIA)[A-Z0-9]{16}\b)"
)
PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----")  # PEM, OpenSSH, PGP
NETRC = re.compile(
    rb"\b(?:(?:machine\s+\S+|default)(?:\s+(?:login|account)\s+\S+)+\s+password\s+\S"
    rb"|machine\s+\S+\s+password\s+\S+\s+login\s+\S)"
)
URL_PASSWORD = re.compile(rb"""://[^\s/?#"'`<>()\[\]{},:@]*:[^\s/?#"'`<>()\[\]{},]+@[\w\[]""")  # user:password@host
ESCAPES = re.compile(rb"\\[bfnrt]")  # white space, as JSON writes it
IN_VALUES = (  # passwords in URLs and connection strings that are the value of a variable, which may hold anything
    re.compile(r"://[^\s/:@]*:(\S+?)@"),
    re.compile(r"://[^\s/:@]*:(\S+)@"),
    re.compile(r"(?:password|passwd|pwd|secret|key|token)=([^\s&;]+)", re.IGNORECASE),
)
SECRET_NAME = re.compile(  # of a variable: its last word, with numbers behind it
    r"(?:(?:^|_)(?:PWD|PAT|PASS)|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL)(?P<several>E?S)?(?:_*\d+)*\Z",
    re.IGNORECASE,
)
PUBLIC_NAMES = ("PWD", "OLDPWD")  # the shell's own: working directories
SHORTEST = 12  # characters of a secret of a variable that is looked for
FORMS = {  # of a secret -> what it is
    "an access token": TOKEN,
    "a private key": PRIVATE_KEY,
    "a password as in .netrc": NETRC,
    "a URL with a password": URL_PASSWORD,
}


def without_places(text: str) -> str:
    """The text with the last name of every path, and without URLs.

    >>> without_places("The judge /home/ada/judge is new")
    'The judge judge is new'
    """
    return PLACE.sub(lambda match: _last_name(match[0]), URL.sub("(a URL)", text))


def hide_private(node: Any) -> Any:
    """Settings as they may be published: paths are their last name, URLs are left out, and so are keys that name secrets."""
    return map_leaves(node, _hidden, lambda key, _: not SECRET.search(str(key)))


def _hidden(leaf: Any) -> Any:
    if not isinstance(leaf, str):
        return leaf
    return _last_name(leaf) if "/" in leaf and "://" not in leaf and is_local(leaf) else without_places(leaf)


def hide_names(text: str, names: Collection[str]) -> str:
    """The text with the last name of each of these `names` of places on this machine."""
    for name in sorted(names, key=len, reverse=True):
        if "/" in name.strip("./"):
            last_name = _last_name(name).replace("\\", r"\\")  # no reference to a group
            text = re.sub(rf"(?<![\w./-]){re.escape(name)}", last_name, text)
    return text


def clean_json(content: bytes) -> bytes:
    """A settings file of a model without the keys that say where it was loaded from, and with `PLACE`s reduced.

    Raises ValueError when it is not a JSON object.
    """

    def shortened(leaf: Any) -> Any:
        is_place = isinstance(leaf, str) and len(PurePath(leaf).parts) > 2 and PLACE.fullmatch(leaf)
        return _last_name(leaf) if is_place else leaf

    kept = {key: value for key, value in parse_json(content, dict).items() if key not in LOCAL_KEYS}
    return (json.dumps(map_leaves(kept, shortened), indent=2, ensure_ascii=False) + "\n").encode()


def _last_name(path: str) -> str:
    name = PurePath(path.replace("\\", "/")).name
    return "" if name in ("", "~", "..") or name == Path.home().name else name


def refuse_secrets(name: str, content: bytes, key: str) -> None:
    """Raises UserError when the content of the file `name` holds a secret in one of the `FORMS`, the Hub's token, or what
    `_secrets_of` an environment variable; the secret is not shown."""
    token = (get_token() or "").encode()
    found = "an access token" if len(token) > 7 and token in content else ""
    words = ESCAPES.sub(b" ", content)
    found = next((what for what, form in FORMS.items() if form.search(words)), found)
    for variable, value in os.environ.items():
        for secret in _secrets_of(variable, value.strip()):
            forms = {secret, secret.replace("'", "''")}  # as it is, and as in the YAML of a card
            forms |= {json.dumps(secret, ensure_ascii=way)[1:-1] for way in (True, False)}
            if any(form.encode("utf-8", "surrogateescape") in content for form in forms):
                found = f"a secret of the environment variable {variable}"
    if found:
        raise UserError(f"{key}: {name} holds {found}, so nothing is published; remove it from the file")


def _secrets_of(variable: str, value: str) -> set[str]:
    """The value of an environment variable whose name says that it is secret, and the passwords of URLs in it.

    Of a name in the plural, also each of the values that commas, semicolons or spaces separate.
    """
    passwords = [password for form in IN_VALUES for password in form.findall(value)]
    secrets = {*passwords, *map(unquote, passwords)}
    if variable not in PUBLIC_NAMES and (match := SECRET_NAME.search(variable)):
        secrets |= {value, *(re.split(r"[\s,;]+", value) if match["several"] else ())}
    return {secret for secret in secrets if len(secret) >= SHORTEST}


def without_token(text: str) -> str:
    """A message without the token, if somebody repeats it."""
    token = get_token()
    return TOKEN.sub(b"(the token)", text.encode()).decode().replace(token or "\0", "(the token)")
