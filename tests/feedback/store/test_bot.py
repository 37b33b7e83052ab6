"""The bot folder: whole or absent, one pointer, and a lineage that survives kills; what is copied of an agent."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.bot import Bot, is_bot
from rlhf_dialog.feedback.store.store import Rating, Store
from rlhf_dialog.runs.lock import lock_folder
from tests.parts.bots import exchange, pretended_agent
from tests.parts.folders import contents, names


@pytest.fixture
def agent(tmp_path):
    return pretended_agent(tmp_path / "model", "rlhf_dialog.json")


@pytest.fixture
def bot(tmp_path, agent):
    return Bot.create(tmp_path / "bot", str(agent))


def test_a_plain_chat_model_keeps_the_template_with_which_chat_talks_to_it(tmp_path, agent):
    (agent / "rlhf_dialog.json").unlink()
    (agent / "config.json").write_text('{"max_position_embeddings": 400}')
    (agent / "chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "bot").mkdir()  # empty, which is as good as none
    bot = Bot.create(tmp_path / "bot", str(agent))
    settings = json.loads((bot.agent_folder("0001") / "rlhf_dialog.json").read_text())
    keys = ("turn_separator", "max_new_tokens", "max_prompt_length")
    assert [settings[key] for key in keys] == ["chat_template", 100, 300]


def night(bot, **record):
    """A new version, as a night adds it."""

    def write(folder):
        (folder / "agent").mkdir()
        (folder / "agent/config.json").write_text("{}")

    return bot.add_version(write, {"method": "kto_dpo", **record})


def statuses(bot):
    return {name: record["status"] for name, record in bot.lineage()["versions"].items()}


def test_a_new_bot(bot, agent):
    assert is_bot(bot.folder)
    assert not is_bot(agent)
    assert sorted(path.name for path in bot.folder.iterdir()) == [
        *("champion", "config.yaml", "feedback.sqlite", "lineage.json", "versions")
    ]
    assert (bot.folder / "champion").read_text() == "0001\n"
    assert {path.name: path.read_text() for path in bot.agent_folder("0001").iterdir()} == {
        name: name for name in ("config.json", "model.safetensors", "rlhf_dialog.json")
    }
    assert (bot.champion(), bot.versions()) == ("0001", ["0001"])
    assert bot.store().bot == bot.id == Bot(bot.folder).id


def test_promotion_and_rollback(bot):
    assert night(bot) == "0002"
    assert statuses(bot) == {"0001": "champion", "0002": "candidate"}
    bot.promote("0002")
    assert (bot.folder / "champion").read_text() == "0002\n"
    third = night(bot)
    assert bot.lineage()["versions"][third]["parent"] == "0002"
    bot.promote("0003")
    assert statuses(bot) == {"0001": "former champion", "0002": "former champion", "0003": "champion"}
    bot.rollback("0001")
    assert statuses(bot) == {"0001": "champion", "0002": "rolled back", "0003": "rolled back"}
    assert night(bot) == "0004"
    bot.rollback("0003")
    assert bot.champion() == "0003"


def test_a_candidate_that_a_rollback_left_behind_is_refused(bot):
    """So that it is not promoted later, when its parent is the champion again, by what the gate said before."""
    night(bot)
    bot.promote("0002")
    night(bot, gate={"promoted": True})
    bot.rollback("0001")
    assert statuses(bot) == {"0001": "champion", "0002": "rolled back", "0003": "refused"}
    with pytest.raises(UserError, match=r"0003 was never the champion .*a refused version.* choose one of 0002"):
        bot.rollback("0003")
    with pytest.raises(UserError, match="0003 was trained from 0002, but 0001 is the champion now"):
        bot.promote("0003")
    assert bot.champion() == "0001"
    night(bot, parent="0002", gate={"promoted": True})  # of a night that was at work
    bot.rollback("0002")
    assert statuses(bot) == {"0001": "rolled back", "0002": "champion", "0003": "refused", "0004": "refused"}


def test_an_agent_of_a_run_of_another_bot_and_of_the_hub(tmp_path, bot, agent, monkeypatch):
    (agent / "inside.txt").symlink_to(agent / "config.json")
    run = tmp_path / "run"
    shutil.copytree(agent, run / "agent")
    (agent / ".git").mkdir()
    for name, given in {"of a run": run, "of a bot": bot.folder, "hub": "user/model"}.items():
        monkeypatch.setattr("rlhf_dialog.feedback.store.bot.model_folder", lambda name, key: str(agent))
        made = Bot.create(tmp_path / name, str(given))
        copied = {path.name: path.is_symlink() for path in made.agent_folder("0001").iterdir()}
        inside = [] if name == "of a bot" else ["inside.txt"]
        assert copied == dict.fromkeys(["config.json", "model.safetensors", "rlhf_dialog.json", *inside], False)
        assert made.id != bot.id


def test_links_out_of_an_agent_are_refused_but_those_to_the_blobs_of_the_hub(tmp_path, agent):
    (tmp_path / "secret").write_text("not to be copied")
    refused = r"bot: cannot be written: .*(absent|No such file)", r"notes\.txt: is a link out of"
    for target, words in zip(("absent", tmp_path / "secret"), refused, strict=True):
        (agent / "notes.txt").symlink_to(target)
        with pytest.raises(UserError, match=words):
            Bot.create(tmp_path / "bot", str(agent))
        assert names(tmp_path) == {"model", "secret"}
        (agent / "notes.txt").unlink()
    model = tmp_path / "models--a--b"
    (model / "snapshots/c").mkdir(parents=True)
    for path in agent.rename(model / "blobs").iterdir():
        (model / "snapshots/c" / path.name).symlink_to(path)
    made = Bot.create(tmp_path / "hub", str(model / "snapshots/c")).agent_folder("0001")
    assert not any(path.is_symlink() for path in made.iterdir())


def test_the_champion_changes_by_one_rename(bot, monkeypatch):
    night(bot)
    before = contents(bot.folder)
    monkeypatch.setattr("rlhf_dialog.feedback.store.bot.replace_file", killed)
    with pytest.raises(KeyboardInterrupt):
        bot.promote("0002")
    assert contents(bot.folder) == before
    monkeypatch.undo()
    monkeypatch.setattr("rlhf_dialog.feedback.store.bot.replace_json", killed)  # after the pointer
    with pytest.raises(KeyboardInterrupt):
        bot.promote("0002")
    monkeypatch.undo()
    again = Bot(bot.folder)
    assert again.champion() == "0002"
    assert statuses(again) == {"0001": "former champion", "0002": "champion"}
    assert night(again) == "0003"
    assert json.loads((bot.folder / "lineage.json").read_text())["versions"]["0001"]["status"] == "former champion"


def killed(*_):
    raise KeyboardInterrupt


def test_a_version_is_written_whole_or_not_at_all(bot, monkeypatch):
    def half(folder):
        (folder / "agent").mkdir()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bot.add_version(half, {})
    assert names(bot.folder / "versions") == {"0001"}
    with monkeypatch.context() as patch:
        patch.setattr("rlhf_dialog.feedback.store.bot.replace_json", killed)  # the lineage does not know the folder
        with pytest.raises(KeyboardInterrupt):
            night(bot)
    assert bot.versions() == ["0001"]
    assert night(bot) == "0002"
    assert bot.versions() == ["0001", "0002"]


def test_who_is_forgotten_taints_what_was_trained_on_them(bot, caplog):
    store = bot.store()
    people = {name: store.hash_person(name) for name in ("ann", "bob")}
    for name in people:
        store.add_turn(store.begin(name, "terminal"), 0, "agent", f"said to {name}")
    store.close()
    night(bot, people=[people["bob"]])
    bot.promote("0002")
    night(bot, people=[people["ann"], people["bob"]])
    bot.promote("0003")
    night(bot)
    assert bot.forget(people["ann"]) == {"rows": 2, "tainted": ["0003", "0004"], "files": []}
    assert bot.forget(people["ann"]) == {"rows": 0, "tainted": [], "files": []}
    found = bot.lineage()["versions"]
    assert [record["tainted"] for record in found.values()] == [False, False, True, True]
    assert found["0003"]["people"] == [people["bob"]]
    night(bot, parent="0002", people=list(people.values()))  # a night that ended after its people were forgotten
    night(bot, parent="0002", people=[people["bob"]])
    night(bot, parent="0004")
    assert [bot.lineage()["versions"][name]["tainted"] for name in ("0005", "0006", "0007")] == [True, False, True]
    assert bot.lineage()["versions"]["0005"]["people"] == [people["bob"]]
    assert b"said to ann" not in b"".join(contents(bot.folder).values())
    bot.rollback("0001")
    bot.rollback("0003")
    assert "version 0003 was trained on feedback of a forgotten person" in caplog.text


def test_what_a_night_at_work_keeps_is_said(bot, caplog):
    work = bot.folder / "night"
    work.mkdir()
    with lock_folder(bot.folder):
        bot.forget("0" * 16)
    assert "a night is at work, whose folder may hold their lines until it ends; run forget again" in caplog.text
    assert work.is_dir()
    bot.forget("0" * 16)
    assert not work.exists()


@pytest.fixture
def ann(bot):
    """The hash of a person with a dialogue and a thumb; bob has them too."""
    store = bot.store()
    for name in ("ann", "bob"):
        dialogue, (turn,) = exchange(store, name, f"a line of {name}")
        store.add_feedback(dialogue, name, Rating("thumb", turn, 1, f"the reason of {name}"))
    person = store.hash_person("ann")
    store.close()
    return person


LEFT = [".night.old/x", "night/x", "versions/.0002.tmp/agent/x", "versions/0007/x", ".lineage.json.0a1b2c3d.tmp"]


def test_what_dead_nights_have_left_is_forgotten(bot, ann):
    before = contents(bot.folder / "versions/0001")
    for path in (bot.folder / name for name in LEFT):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a line of ann")
    assert bot.forget(ann)["files"] == []
    assert b"a line of ann" not in b"".join(contents(bot.folder).values())
    assert contents(bot.folder / "versions/0001") == before


def test_files_that_hold_the_hash_of_a_person_are_named_and_stay(bot, ann, caplog):
    store, folder = bot.store(), bot.folder
    (folder / "export.jsonl").write_text(f'{{"person": "{ann}"}}')
    (folder / "versions/0001/agent/notes.md").write_text(store.hash_person("bob"))
    store.backup(folder / "copy.db")
    store.close()
    found = [folder / "copy.db", folder / "export.jsonl"]
    assert bot.forget(ann) == {"rows": 4, "tainted": [], "files": found}
    assert "copy.db, export.jsonl" in caplog.text
    assert bot.forget(ann) == {"rows": 0, "tainted": [], "files": found}


def test_the_copy_of_an_older_store_goes_with_who_is_in_it(bot, ann):
    copy = bot.folder / "feedback.version-1.sqlite"
    bot.store_path.with_name(copy.name).write_bytes(bot.store_path.read_bytes())
    bot.forget("f" * 16)
    assert copy.exists()
    assert bot.forget(ann)["files"] == []
    assert not copy.exists()


def test_one_of_those_who_share_a_person_is_forgotten_alone(bot):
    with closing(bot.store()) as store:
        users = [store.hash_outside(name) for name in ("u1", "u2")]
        for user in users:
            dialogue = store.begin("unknown", "api", user=user)
            store.add_turn(dialogue, 0, "agent", f"said to {user}")
        unknown = store.hash_person("unknown")
    night(bot, people=[unknown, users[0]])
    night(bot, parent="0001", people=[unknown, users[1]])
    assert bot.forget(unknown, users[0]) == {"rows": 2, "tainted": ["0002"], "files": []}
    records = bot.lineage()["versions"]
    assert [records[name]["people"] for name in ("0002", "0003")] == [[unknown], sorted([unknown, users[1]])]
    night(bot, parent="0001", people=users)  # a night that ended meanwhile
    assert bot.lineage()["versions"]["0004"]["tainted"]
    assert f"said to {users[0]}".encode() not in b"".join(contents(bot.folder).values())
    assert bot.forget(unknown)["tainted"] == ["0003"]


def test_a_kill_while_somebody_is_forgotten_loses_no_mark(bot, ann, monkeypatch):
    night(bot, people=[ann])
    with monkeypatch.context() as patched:
        patched.setattr(Store, "forget", killed)
        with pytest.raises(KeyboardInterrupt):
            bot.forget(ann)
    assert bot.lineage()["versions"]["0002"]["tainted"]
    assert bot.forget(ann) == {"rows": 4, "tainted": [], "files": []}
    assert ann not in (bot.folder / "lineage.json").read_text()


def test_a_night_that_ends_while_somebody_is_forgotten_is_marked(bot, ann, monkeypatch):
    real = Store.forget

    def after_a_night(self, *arguments):
        night(bot, people=[ann])
        return real(self, *arguments)

    monkeypatch.setattr(Store, "forget", after_a_night)
    assert bot.forget(ann) == {"rows": 4, "tainted": ["0002"], "files": []}


def test_what_is_kept_and_what_is_removed(bot):
    for concordance in (0.5, 0.9, 0.6, 0.7, 0.8):
        bot.promote(night(bot, gate={"concordance": concordance}))
    night(bot, status="refused", gate={"concordance": 1.0})
    night(bot, status="refused", gate={"concordance": None})
    assert bot.prune(2) == ["0002", "0004", "0005"]  # kept: the first, the best champion, the champion, the last two
    assert bot.versions() == ["0001", "0003", "0006", "0007", "0008"]
    assert names(bot.folder / "versions") == {"0001", "0003", "0006", "0007", "0008"}
    assert statuses(bot)["0004"] == "removed"
    assert bot.prune(2) == []
    assert bot.prune(0) == ["0007", "0008"]
    assert night(bot) == "0009"  # no name is used twice
    with pytest.raises(UserError, match="there is no version '0004'"):
        bot.agent_folder("0004")


def test_nights_at_once_lose_nothing(bot):
    with ThreadPoolExecutor() as nights:
        list(nights.map(night, [Bot(bot.folder) for _ in range(4)]))
    assert bot.versions() == ["0001", "0002", "0003", "0004", "0005"]


def test_an_older_store_gives_no_event_the_number_of_one_that_was_learned(bot):
    night(bot, last_event=70)
    store = bot.store()
    dialogue, (turn,) = exchange(store, "ann")
    assert store.add_feedback(dialogue, "ann", Rating("thumb", turn=turn, value=1)) == 71
    store.close()
    store = bot.store()
    assert store.add_feedback(dialogue, "ann", Rating("thumb", turn=turn, value=-1)) == 72
    store.close()
