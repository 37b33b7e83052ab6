"""A simulated month: scripted people talk to a bot by day, it learns by night, and what their taste says of it is measured.

A month lies in a folder: `agent/` (what the bot begins with), `bot/`, `month.jsonl` (a row a night) and `config.yaml`. It goes on
where it was interrupted: a day that did not end is talked again from the store as it was in the morning (`morning.sqlite`).
"""

import json
import logging
import shutil
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from pydantic import Field

from experiments.month.people import TROLL, Host, People, PeopleKeys, liked_share
from rlhf_dialog.atomic_files import atomic_folder, replace_json, replace_text, write_json
from rlhf_dialog.config.loading import dump_yaml, load_settings
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.data.sources import load_records
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.replies import generate_replies, pick_prompts
from rlhf_dialog.feedback.learning.night import learn, take_snapshot
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.examples import cap_weights, max_share
from rlhf_dialog.feedback.store.settings import BotSettings, read_settings
from rlhf_dialog.models.chat_agent import AGENT_FILE, AGENT_FORMAT, ChatAgent
from rlhf_dialog.runs.verification import sha256_of, sha256_of_file

logger = logging.getLogger(__name__)
ROWS, MORNING, TALKED = "month.jsonl", "morning.sqlite", "talked.json"
MAY_CHANGE = ("nights", "output", "troll_study", "study_seeds", "study_nights")
Row = dict[str, Any]


class MonthKeys(PeopleKeys):
    """Simulated month"""

    agent: str = Field(description="folder of the model that the bot begins with")
    data_path: str = Field(description="dialogues: people follow those of train, the liked share is measured on test")
    output: str = Field(description="folder of the month; one that was interrupted goes on")
    nights: int = Field(30, ge=1, le=10**4, description="days of talking, each with a night of learning after it")
    eval_prompts: int = Field(300, ge=1, description="prompts on which the liked share is measured")
    context_size: int = Field(2, ge=1, description="turns that the bot sees")
    max_prompt_length: int = Field(96, ge=8, description="tokens of them")
    max_new_tokens: int = Field(24, ge=1, description="tokens of an answer")
    seed: int = Field(0, ge=0, lt=2**32, description="of the people, and of learning")
    troll_study: bool = Field(
        False, description="instead of one month, pairs of short ones with and without the troll; prints the table"
    )
    study_seeds: int = Field(5, ge=2, le=10, description="of troll_study: pairs of months")
    study_nights: int = Field(10, ge=1, le=10**4, description="of troll_study: nights of each month")
    learning: BotSettings = Field(
        default_factory=BotSettings, description="the bot's config.yaml; its seed is the month's"
    )


class Month:
    """A month in its folder. `rows` are those of the nights that are over, the first one of the bot before anybody has talked."""

    def __init__(self, keys: MonthKeys):
        """Raises UserError when the folder holds something else, or a month of other settings."""
        self.keys, self.folder = keys, Path(keys.output).expanduser()
        self.path = self.folder / ROWS
        _check(keys, self.folder)
        scripts = [record.turns for record in load_records(keys.data_path, "train")]
        prompts = PromptRules(context_size=keys.context_size).load(keys.data_path, "test")
        self.prompts = pick_prompts(prompts, keys.eval_prompts)
        self.people = People(keys, scripts, keys.seed)
        self.bot = _bot(keys, self.folder)
        self.rows = _read_rows(self.path)

    def nights(self) -> Iterator[Row]:
        """Go on to the last night; yields the row of each night as it ends."""
        if not self.rows:
            self._end(self._silent_night())
        while len(self.rows) <= self.keys.nights:
            yield self._night(len(self.rows))

    def drift(self) -> dict[str, Any]:
        """A night without new feedback: the hash of the champion's weights before and after it, and what the night says."""
        before = weights_of(self.bot)
        why = learn(self.bot).why
        return {"before": before, "after": (after := weights_of(self.bot)), "equal": before == after, "why": why}

    def _silent_night(self) -> Row:
        return {"night": 0, "events": 0, "promoted": None, **self.drift(), **self._measured()}

    def _night(self, number: int) -> Row:
        self._talk(number)
        shares = troll_shares(self.bot)
        report = learn(self.bot)
        row = {"night": number, **self._counts(), **shares, **_outcome(self.bot), "why": report.why, **self._measured()}
        self._end(row)
        return row

    def _talk(self, number: int) -> None:
        """A day of talking, whole."""
        morning, talked = self.folder / MORNING, self.folder / TALKED
        done = talked.is_file() and json.loads(talked.read_text(encoding="utf-8"))["night"] >= number
        if morning.is_file() and not done:
            _restore(self.bot, morning)
        morning.unlink(missing_ok=True)
        if done:
            return
        store = self.bot.store()
        try:
            store.backup(morning)
            self.people.talk(store, self._host(), number)
        finally:
            store.close()
        replace_json(talked, {"night": number})
        morning.unlink()

    def _host(self) -> Host:
        version = self.bot.champion()
        return Host(ChatAgent.load(self.bot.agent_folder(version)), version, self.keys.context_size)

    def _measured(self) -> Row:
        """The champion, and what is liked of its answers to prompts that nobody has talked about."""
        version = self.bot.champion()
        if self.rows and self.rows[-1]["champion"] == version:
            return {name: self.rows[-1][name] for name in ("champion", "liked", "words", "distinct")}
        agent = ChatAgent.load(self.bot.agent_folder(version))
        answers = [one.response for one in generate_replies(agent, self.prompts, agent.sampling).dialogues]
        words = sum(len(one.split()) for one in answers) / len(answers)
        liked = liked_share(answers, self.keys.taste)
        return {"champion": version, "liked": liked, "words": words, "distinct": len(set(answers)) / len(answers)}

    def _counts(self) -> Row:
        store = self.bot.store()
        try:
            events, troll = store.feedback(newest=False), store.hash_person(TROLL)
            return {"events": len(events), "troll_events": sum(event.person == troll for event in events)}
        finally:
            store.close()

    def _end(self, row: Row) -> None:
        self.rows.append(row)
        replace_text(self.path, "".join(json.dumps(one) + "\n" for one in self.rows))


def _check(keys: MonthKeys, folder: Path) -> None:
    path = folder / "config.yaml"
    if not path.is_file():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"output: '{folder}' is not an empty folder, and not that of a month; choose another one")
        return
    before, now = load_settings(MonthKeys, path).model_dump(), keys.model_dump()
    if changed := [name for name, value in now.items() if before[name] != value and name not in MAY_CHANGE]:
        raise UserError(
            f"output: the month in '{folder}' has another {', '.join(changed)}; set it as in {path}, or choose another output"
        )


def _bot(keys: MonthKeys, folder: Path) -> Bot:
    """The bot of the month; a new one, if the month has not begun."""
    if not (folder / "config.yaml").is_file():
        settings = keys.learning.model_copy(update={"seed": keys.seed})
        with atomic_folder(folder) as target:
            shutil.copytree(Path(keys.agent).expanduser(), target / "agent")
            names = ("context_size", "max_prompt_length", "max_new_tokens")
            own = {name: getattr(keys, name) for name in names}
            write_json(target / "agent" / AGENT_FILE, {"format_version": AGENT_FORMAT, **own})
            bot = Bot.create(target / "bot", str(target / "agent"))
            bot.settings_path.write_text(dump_yaml(settings), encoding="utf-8")
            (target / "config.yaml").write_text(dump_yaml(keys), encoding="utf-8")
    return Bot(folder / "bot")


def _restore(bot: Bot, morning: Path) -> None:
    """Put the store of the morning in the place of today's."""
    for ending in ("-wal", "-shm"):
        bot.store_path.with_name(bot.store_path.name + ending).unlink(missing_ok=True)
    morning.replace(bot.store_path)
    logger.info("the day that was interrupted begins again")


def _read_rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def _outcome(bot: Bot) -> Row:
    """What became of the night: the version that was made of the newest feedback, if there is one, and its gate."""
    store = bot.store()
    try:
        newest = store.last_event()
    finally:
        store.close()
    versions = bot.lineage()["versions"]
    made = [name for name in versions if versions[name]["last_event"] == newest and versions[name]["gate"]]
    if not made:
        return {"promoted": None}
    gate = versions[max(made)]["gate"]
    return {
        "version": max(made),
        "promoted": gate["promoted"],
        "gate": {k: gate[k] for k in ("champion", "candidate", "low")},
    }


def troll_shares(bot: Bot) -> Row:
    """The troll's share of the weight of the coming night and of its gate; whether both are within the cap, exactly."""
    settings = read_settings(bot.settings_path)
    snapshot = take_snapshot(bot, settings)
    store = bot.store()
    try:
        troll = store.hash_person(TROLL)
    finally:
        store.close()
    shares, within = {}, True
    for name, some in (("troll_training", snapshot.training), ("troll_gate", snapshot.heldout)):
        counts = Counter(one.person for one in some.all)
        weights = cap_weights(counts, settings.person_cap)
        totals = {person: weights[person] * count for person, count in counts.items()}
        shares[name] = _share(totals, troll)
        within &= _is_within(totals, troll, settings.person_cap)
    return {**shares, "within_cap": within}


def _is_within(some: dict[str, Any], person: str, cap: float) -> bool:
    total = sum(some.values(), Fraction(0))
    return Fraction(some.get(person, 0)) <= max_share(cap, len(some)) * total


def _share(some: dict[str, Any], person: str) -> float:
    total = sum(some.values(), Fraction(0))
    return float(some.get(person, 0) / total) if total else 0.0


def weights_of(bot: Bot) -> str:
    """A hash of the files of the champion: its name, its agent, and the state of learning."""
    champion = bot.champion()
    folder = bot.version_folder(champion)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return sha256_of([champion, [(path.relative_to(folder).as_posix(), sha256_of_file(path)) for path in files]])
