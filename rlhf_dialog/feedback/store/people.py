"""Whom the owner of a bot has invited: people.json, the one file with names. The store has the hash of the random id `person`.

{"format_version": 1, "people": {"Ann": {"role": "teacher", "person": "0a..", "keys": ["9f.."], "created": ".", "revoked": null}}}

A key is shown once, when it is made; the file has its SHA-256, and that of the codes that invite to the page (`codes`).
"""

import fcntl
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_dialog.atomic_files import atomic_file, disk_errors_as_user_errors, write_json
from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.json_files import damage_as_user_error, load_json, refuse_newer
from rlhf_dialog.runs.lock import open_lock

PEOPLE_FILE, FORMAT = "people.json", 1
ROLES = ("user", "teacher", "gateway")
KEY_BEGIN, KEY_BYTES = "rd-", 32
LONGEST_NAME = 60


@dataclass(frozen=True)
class Person:
    """One who was invited. `person`: their random id, which the store hashes."""

    name: str  # the owner's label
    role: str  # user; teacher: rates all answers; gateway: a program that names its users
    person: str


class People:
    """The people.json of a bot. Threads may share it, and it is read again when another process has changed it.

    Each method raises UserError when the file is damaged, newer, or cannot be read.
    """

    def __init__(self, folder: Path):
        self.path = Path(folder) / PEOPLE_FILE
        self._read_at: tuple[int, ...] | None = None
        self._records: dict[str, dict[str, Any]] = {}
        self._existed = False

    @classmethod
    def load(cls, bot_folder: Path) -> "People":
        """The people of a bot; nobody where there is no file."""
        people = cls(bot_folder)
        people._refresh()
        return people

    def has_keys(self) -> bool:
        """Whether there ever was a key, also one that was revoked since: from then on, this machine needs one too.

        A file that is removed meanwhile opens nothing.
        """
        self._refresh()
        return self._existed

    def find(self, key: str) -> Person | None:
        """Whose key it is; None of a wrong or revoked one."""
        digest, found = _digest(key), None
        for name, record in self._refresh().items():  # all are compared, so that the time tells nothing
            for stored in record["keys"]:
                if hmac.compare_digest(stored, digest):
                    found = Person(name, record["role"], record["person"])
        return found

    def list(self) -> list[tuple[Person, dict[str, Any]]]:
        """All, by name, each with the record of the file."""
        records = sorted(self._refresh().items())
        return [(Person(name, record["role"], record["person"]), record) for name, record in records]

    def get(self, name: str) -> Person:
        """Raises UserError when nobody of this name was invited."""
        self._check(records := self._refresh(), name)
        return Person(name, records[name]["role"], records[name]["person"])

    def invite(self, name: str, role: str | None = None) -> str:
        """A new key, which is nowhere else; one who was invited before stays the same person, with the keys that they have.

        `role`: None is that of before, or user. Raises UserError for a name that cannot be one.
        """
        key = KEY_BEGIN + secrets.token_urlsafe(KEY_BYTES)
        self._add(name, role, "keys", key)
        return key

    def invite_to_page(self, name: str) -> str:
        """A code for which the page makes a browser this person's, once. Raises UserError for a name that cannot be one."""
        code = secrets.token_urlsafe(KEY_BYTES)
        self._add(name, None, "codes", code)
        return code

    def trade(self, code: str) -> str | None:
        """The random id of whom a code invites to the page, which it does no more; None of a wrong, used or revoked one."""
        digest = _digest(code)
        if not any(digest in record.get("codes", []) for record in self._refresh().values()):
            return None
        with self._changing() as records:
            for record in records.values():
                if digest in record.get("codes", []):
                    record["codes"].remove(digest)
                    return str(record["person"])
        return None

    def _add(self, name: str, role: str | None, kind: str, secret: str) -> None:
        is_name = name.isprintable() and name == name.strip() and 1 <= len(name) <= LONGEST_NAME
        if not is_name or _is_hash(name) or name == "samples":  # of which `forget` would not know what is meant
            raise UserError(
                f"NAME: found {name[:LONGEST_NAME]!r}, wanted at most {LONGEST_NAME} printed characters, and no hash of a person"
            )
        with self._changing() as records:
            now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            new: dict[str, Any] = {
                "role": "user",
                "person": secrets.token_hex(16),
                "keys": [],
                "created": now,
                "revoked": None,
            }
            record = records.setdefault(name, new)
            record |= {"role": role or record["role"], kind: [*record.get(kind, []), _digest(secret)]}
            record |= {"revoked": None} if kind == "keys" else {}

    def revoke(self, name: str) -> int:
        """Let none of a person's keys and codes work any more; returns how many there were.

        Raises UserError when nobody has this name.
        """
        with self._changing() as records:
            self._check(records, name)
            number = len(records[name]["keys"]) + len(records[name].get("codes", []))
            records[name] |= {"keys": [], "codes": [], "revoked": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        return number

    def forget(self, name: str) -> None:
        """Remove name, id and keys. Raises UserError when nobody of this name was invited."""
        with self._changing() as records:
            self._check(records, name)
            del records[name]

    def _check(self, records: dict[str, dict[str, Any]], name: str) -> None:
        if name not in records:
            advice = nearest(name, list(records)) or "; `feedback people` lists them"
            raise UserError(f"{self.path}: nobody was invited as {name[:LONGEST_NAME]!r}{advice}")

    @contextmanager
    def _changing(self) -> Iterator[dict[str, dict[str, Any]]]:
        """The records, alone: they are written when the block ends, unless it fails."""
        with disk_errors_as_user_errors(self.path.parent):
            handle = open_lock(self.path.with_name(".people.lock"))
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                records = _read(self.path)
                yield records
                with atomic_file(self.path, 0o600) as temporary:
                    write_json(temporary, {"format_version": FORMAT, "people": records})
            finally:
                os.close(handle)

    def _refresh(self) -> dict[str, dict[str, Any]]:
        """The records as they are now on the disk."""
        now = None
        with suppress(FileNotFoundError):
            found = self.path.stat()
            now = (found.st_ino, found.st_mtime_ns, found.st_size)
        if now != self._read_at or now is None:
            self._records, self._read_at = _read(self.path), now
            self._existed = self._existed or now is not None
        return self._records


def _read(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    with damage_as_user_error(f"{path}: is damaged (", "); put a backup in its place"):
        tree = load_json(path)
        refuse_newer(path, tree["format_version"], FORMAT)
        people: dict[str, dict[str, Any]] = tree["people"]
        for record in people.values():
            lists = record["keys"], record.get("codes", [])
            are_keys = all(isinstance(keys, list) and all(_is_hash(key, 64) for key in keys) for keys in lists)
            if not (record["role"] in ROLES and _is_hash(record["person"], 32) and are_keys):
                raise ValueError("a person lacks a role, an id or keys")
    return people


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def _is_hash(text: Any, length: int = 16) -> bool:
    return isinstance(text, str) and len(text) == length and set(text) <= set("0123456789abcdef")
