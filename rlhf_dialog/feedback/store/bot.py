"""The folder of a bot: its versions, which of them answers (the champion), and how each came to be (the lineage).

champion            0002              one line, replaced by one rename
versions/0001/agent                   the first version: the agent that the bot began with
versions/0002/agent, learner          what a night made of its parent, and where the next night goes on
lineage.json                          versions, parents, gates
feedback.sqlite, config.yaml          what people said; the settings of learning
"""

import fcntl
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from rlhf_dialog.atomic_files import (
    atomic_folder,
    check_no_link,
    discard,
    remove_whole,
    replace_file,
    replace_json,
    write_json,
)
from rlhf_dialog.data.chat_models import chat_settings
from rlhf_dialog.data.hub import is_local, model_folder
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store import schema
from rlhf_dialog.feedback.store.settings import default_settings
from rlhf_dialog.feedback.store.store import Store
from rlhf_dialog.found_files import agent_folder, check_files
from rlhf_dialog.json_files import damage_as_user_error, load_json, refuse_newer
from rlhf_dialog.runs.lock import lock_folder, open_lock

logger = logging.getLogger(__name__)
AGENT_FILE = "rlhf_dialog.json"
FORMAT = 1
FIRST = "0001"
WEIGHTS = (".safetensors", ".bin")
NIGHT = "night"  # what a night keeps while it is at work
PARTS = ("versions", NIGHT, "feedback.sqlite")  # what is changed in place
CHAMPIONS = ("champion", "former champion", "rolled back")  # the statuses of versions that people may be given again


def copy_agent(source: Path, target: Path) -> None:
    """Copy the files but hidden ones; a plain chat model gets the settings with which `chat` would talk to it.

    Raises UserError for a file that may not be opened (`found_files`).
    """
    check_files(source)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(".*"))
    if not (target / AGENT_FILE).exists() and (settings := chat_settings(target)):
        write_json(target / AGENT_FILE, settings)


def is_bot(folder: str | Path) -> bool:
    """Whether the folder is that of a bot. Raises UserError for a lineage that may not be opened."""
    folder = Path(folder)
    check_files(folder, ["lineage.json"])
    return (folder / "lineage.json").is_file() and (folder / "versions").is_dir()


class Bot:
    """A bot folder that exists. Processes may share it: each change is made under a lock, and is whole or absent."""

    def __init__(self, folder: str | Path):
        """Raises UserError when the folder is not a bot's, or one of its files is damaged, newer, or may not be opened."""
        self.folder = Path(folder).expanduser()
        if not is_bot(self.folder):
            raise UserError(
                f"{folder}: is not the folder of a bot; make one: rlhf-dialog feedback init --run {folder} --agent DIR"
            )
        for path in (*(self.folder / name for name in PARTS), *(self.folder / "versions").iterdir()):
            check_no_link(path)
        check_files(self.folder)
        self.id = str(self._read()["bot"])

    @classmethod
    def create(cls, folder: str | Path, agent: str, system_prompt: str | None = None, trusted: bool = False) -> "Bot":
        """A new bot that begins with a copy of `agent`: a folder, a training run, another bot, or a name on the Hub.

        `system_prompt` replaces that of the agent. The folder has everything, or does not exist. Raises UserError when it is not
        empty, when there is no such agent, when it is a link out of its run that is not `trusted`, and when the agent cannot
        write the system prompt.
        """
        folder = Path(folder).expanduser()
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            what = "is a bot already" if is_bot(folder) else "is not an empty folder"
            raise UserError(f"{folder}: {what}; choose another name with --run")
        source = agent_source(agent, trusted)
        with atomic_folder(folder) as target:
            copy_agent(source, target / "versions" / FIRST / "agent")
            if system_prompt is not None:
                from rlhf_dialog.models.saved_agent import set_system_prompt  # it loads torch

                set_system_prompt(target / "versions" / FIRST / "agent", system_prompt)
            store = Store.create(target / "feedback.sqlite")
            store.close()
            record = _record({"parent": None, "method": "init", "status": "champion", "source": agent})
            write_json(
                target / "lineage.json", {"format_version": FORMAT, "bot": store.bot, "versions": {FIRST: record}}
            )
            (target / "champion").write_text(f"{FIRST}\n", encoding="utf-8")
            (target / "config.yaml").write_text(default_settings(), encoding="utf-8")
        return cls(folder)

    @property
    def store_path(self) -> Path:
        """The SQLite file of dialogues and feedback."""
        return self.folder / "feedback.sqlite"

    @property
    def settings_path(self) -> Path:
        return self.folder / "config.yaml"

    def store(self) -> Store:
        """The bot's store. Raises UserError as `Store` does, also for another bot's.

        An older copy, which was put in its place, gives no event the id of one that a version has learned from.
        """
        store = Store(self.store_path, self.id)
        store.reserve(max(one["last_event"] for one in self._read()["versions"].values()))
        return store

    def champion(self) -> str:
        """The version that answers. Raises UserError when the pointer is missing or names none."""
        path = self.folder / "champion"
        try:
            name = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeError) as error:
            raise UserError(f"{path}: cannot be read ({error}); write the name of a version into it") from error
        if name not in self._read()["versions"]:
            raise UserError(
                f"{path}: names {name[:20]!r}, which is not a version; write one of {', '.join(self.versions())}"
            )
        return name

    def agent_folder(self, version: str) -> Path:
        """The agent of a version. Raises UserError when there is none."""
        self._check(version)
        return self.version_folder(version) / "agent"

    def version_folder(self, version: str) -> Path:
        """Where a version lies, with what learning keeps beside its agent."""
        return self.folder / "versions" / version

    def versions(self) -> list[str]:
        """The versions that were not removed, oldest first."""
        return sorted(name for name, one in self._read()["versions"].items() if one["status"] != "removed")

    def usable_versions(self) -> list[str]:
        """The versions that a dialogue may go on with, oldest first: not those that were removed, refused or tainted."""
        records = self._read()["versions"]
        return sorted(
            name for name, one in records.items() if one["status"] not in ("removed", "refused") and not one["tainted"]
        )

    def lineage(self) -> dict[str, Any]:
        """lineage.json, with the statuses that the pointer implies."""
        tree, champion = self._read(), self.champion()
        for name, record in tree["versions"].items():
            if name == champion:
                record["status"] = "champion"
            elif record["status"] == "champion":  # a kill came between the pointer and the lineage
                record["status"] = "former champion"
        return tree

    def add_version(self, write: Callable[[Path], None], record: dict[str, Any]) -> str:
        """A new version, whose folder `write` fills; returns its name.

        `record` becomes its entry of the lineage; `parent` is the champion, and `status` "candidate", unless it says
        otherwise. A person of `record["people"]` who was forgotten meanwhile taints it. Raises UserError for a disk error.
        """
        with self._changing() as tree:
            versions = tree["versions"]
            name = f"{int(max(versions)) + 1:04d}"
            entry = _record({"parent": self.champion(), **record})
            with closing(self.store()) as store:
                people = store.people() | store.users()
            parent = versions.get(entry["parent"], {})
            entry["tainted"] = bool(entry["tainted"] or parent.get("tainted") or set(entry["people"]) - people)
            entry["people"] = sorted(set(entry["people"]) & people)
            with atomic_folder(self.version_folder(name)) as folder:
                write(folder)
            versions[name] = entry
        return name

    def promote(self, version: str) -> None:
        """Make a version the champion. Raises UserError unless the champion is still its parent."""
        with self._changing() as tree:
            self._check(version)
            champion, parent = self.champion(), tree["versions"][version]["parent"]
            if champion not in (parent, version):
                raise UserError(
                    f"{self.folder}: {version} was trained from {parent}, but {champion} is the champion now, so it is not "
                    "promoted; learn again"
                )
            self._point(tree, version, {champion: "former champion"})

    def rollback(self, version: str) -> None:
        """Make an earlier champion the champion again; those that came after it are rolled back, and candidates are refused.

        Raises UserError for a version that never was one, or is removed.
        """
        with self._changing() as tree:
            self._check(version)
            records, champion = tree["versions"], self.champion()
            if version == champion:
                raise UserError(f"{self.folder}: {version} is the champion already; choose another version")
            if records[version]["status"] not in CHAMPIONS:
                former = sorted(name for name, x in records.items() if x["status"] in CHAMPIONS and name != champion)
                raise UserError(
                    f"{self.folder}: {version} was never the champion (it is a {records[version]['status']} version); "
                    f"choose one of {', '.join(former) or 'none: there is only the first champion so far'}"
                )
            line = _ancestors(records, champion)
            left = line[: line.index(version)] if version in line else [champion]
            candidates = [name for name, one in records.items() if one["status"] == "candidate"]
            self._point(tree, version, {**dict.fromkeys(left, "rolled back"), **dict.fromkeys(candidates, "refused")})

    def forget(self, person_hash: str, user: str | None = None) -> dict[str, Any]:
        """Remove a person's rows from the store, and mark the versions that were trained on them, or from such a version.

        With `user`, those of one who shares this person with others. What dead nights have left goes too, and the copy of a
        store that got the tables of a newer version, where it holds the hash. Other such files below the folder, as exports and
        backups, stay, and are named in a warning. Returns `rows` (the number removed), `tainted` (the versions marked now) and
        `files`.
        """
        forgotten = user or person_hash
        with closing(self.store()) as store:
            hashes = {user} if user else {person_hash, *store.users(person_hash)}
            with self._changing() as tree:
                tainted = _taint(tree["versions"], hashes)
            self._remove_leftovers()
            rows = store.forget(person_hash, user)
        with self._changing() as tree:  # a night may have ended meanwhile
            tainted |= _taint(tree["versions"], hashes)
            for record in tree["versions"].values():
                record["people"] = [one for one in record["people"] if one not in hashes]
        own = {self.folder / f"feedback.sqlite{ending}" for ending in ("", "-wal", "-shm")}
        paths = (path for path in sorted(self.folder.rglob("*")) if path.is_file() and not path.is_symlink())
        others = (path for path in paths if path.suffix not in WEIGHTS and path not in own)
        found = [path for path in others if forgotten.encode() in path.read_bytes()]
        backups = {schema.backup_path(self.store_path, version) for version in schema.VERSIONS}
        for path in backups.intersection(found):
            path.unlink()
        if files := [path for path in found if path not in backups]:
            names = ", ".join(str(path.relative_to(self.folder)) for path in files)
            logger.warning("%s: these files hold lines of %s; remove them: %s", self.folder, forgotten, names)
        return {"rows": rows, "tainted": sorted(tainted), "files": files}

    def drop_night(self) -> None:
        """Remove what a night keeps while it is at work."""
        if (self.folder / NIGHT).is_dir():
            remove_whole(self.folder / NIGHT)

    def prune(self, keep_last: int) -> list[str]:
        """Remove the folders of all but the last `keep_last` versions, the best, the champion and the first; returns their names.

        The best has the highest `gate["concordance"]` of those that have been champion.
        """
        with self._changing() as tree:
            records, champion, names = tree["versions"], self.champion(), self.versions()
            rated = {
                name: value
                for name in names
                if records[name]["status"] in CHAMPIONS
                and isinstance(value := (records[name].get("gate") or {}).get("concordance"), int | float)
            }
            best = sorted(rated, key=rated.__getitem__)[-1:]
            kept = {*names[max(len(names) - keep_last, 0) :], champion, FIRST, *best}
            removed = [name for name in names if name not in kept]
            for name in removed:
                records[name]["status"] = "removed"
        for name in removed:  # after the lineage says so: a kill leaves a folder that nobody reads
            remove_whole(self.version_folder(name))
        return removed

    def _check(self, version: str) -> None:
        if version not in (left := self.versions()):
            raise UserError(f"{self.folder}: there is no version {version[:20]!r}; choose one of {', '.join(left)}")

    def _point(self, tree: dict[str, Any], version: str, statuses: dict[str, str]) -> None:
        """Replace the pointer, and set the statuses that follow from it."""
        if tree["versions"][version]["tainted"]:
            logger.warning("%s: version %s was trained on feedback of a forgotten person", self.folder, version)
        replace_file(self.folder / "champion", f"{version}\n")
        for name, status in {**statuses, version: "champion"}.items():
            tree["versions"][name]["status"] = status

    def _remove_leftovers(self) -> None:
        """Remove what dead processes have left: nights, folders under a hidden name, versions that the lineage does not have.

        While a night is at work they stay, with a warning.
        """
        try:
            with lock_folder(self.folder), self._changing() as tree:
                self.drop_night()
                known = {name for name, record in tree["versions"].items() if record["status"] != "removed"}
                numbered = (self.folder / "versions").glob("[0-9]*")
                hidden = (path for path in self.folder.rglob(".*") if path.suffix in (".tmp", ".old"))
                for path in [*(path for path in numbered if path.name not in known), *hidden]:
                    discard(path)
        except UserError as error:
            text = "%s: a night is at work, whose folder may hold their lines until it ends; run forget again then (%s)"
            logger.warning(text, self.folder, error)

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """The lineage, alone: it is written when the block ends, unless it fails."""
        try:
            handle = open_lock(self.folder / ".lineage.lock")
        except OSError as error:
            raise UserError(f"{self.folder}: cannot be written: {error}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            tree = self.lineage()
            yield tree
            replace_json(self.folder / "lineage.json", tree)
        finally:
            os.close(handle)

    def _read(self) -> dict[str, Any]:
        path = self.folder / "lineage.json"
        with damage_as_user_error(f"{path}: is damaged (", "); put a backup in its place"):
            tree = load_json(path)
            refuse_newer(path, tree["format_version"], FORMAT)
            is_whole = isinstance(tree["bot"], str) and FIRST in tree["versions"]
            are_named = all(re.fullmatch(r"\d{4,}", name) for name in tree["versions"])
            kinds = [(one[key], kind) for one in tree["versions"].values() for key, kind in RECORD.items()]
            if not (is_whole and are_named and all(isinstance(value, kind) for value, kind in kinds)):
                raise ValueError("it lacks what a lineage has")
        return tree


RECORD: dict[str, Any] = {"created": str, "parent": str | None, "method": str | None, "status": str, "last_event": int}
RECORD |= {"num_events": dict, "people": list, "gate": dict | None, "tainted": bool}


def _record(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of the lineage with what every version has."""
    default: dict[str, Any] = {"created": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "method": None, "status": "candidate"}
    return {**default, "last_event": 0, "num_events": {}, "people": [], "gate": None, "tainted": False, **entry}


def _ancestors(records: dict[str, Any], version: str | None) -> list[str]:
    """The version, its parent, and so on to the first; a circle, which a damaged file may hold, ends."""
    line: list[str] = []
    while version in records and version not in line:
        line.append(version)
        version = records[version]["parent"]
    return line


def _taint(records: dict[str, Any], people: set[str]) -> set[str]:
    """Mark the versions that were trained on what these people said, and those trained from them; returns those marked now."""
    sources = {name for name, one in records.items() if one["tainted"] or people & set(one["people"])}
    marked = {name for name in records if sources & set(_ancestors(records, name)) and not records[name]["tainted"]}
    for name in marked:
        records[name]["tainted"] = True
    return marked


def agent_source(agent: str, trusted: bool = False) -> Path:
    """The folder of an agent: itself, `agent/` of a training run, a bot's champion, or the local copy of a model of the Hub.

    Raises UserError when there is none, or it is a link out of its run (`check_part`).
    """
    folder = Path(agent).expanduser()
    if is_bot(folder):
        bot = Bot(folder)
        return bot.agent_folder(bot.champion())
    if not folder.is_dir() and is_local(agent):
        raise UserError(
            f"--agent: there is no folder '{agent}'; name an agent, a training run, a bot, or a model on the Hub"
        )
    source = Path(model_folder(agent_folder(agent, trusted), "--agent"))
    if not (source / "config.json").is_file() or not any(path.suffix in WEIGHTS for path in source.iterdir()):
        raise UserError(
            f"--agent: '{agent}' holds no agent (config.json and weights); name an agent folder, or a finished training run"
        )
    return source
