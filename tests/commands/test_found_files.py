"""Every command in front of a folder in which one file is a link out of it, or a pipe: exit code 2 with the name of the file.

Nothing of what the link leads to is shown or written, and nothing waits for the pipe; nothing is written through a link.
The rule is tested here twice: by its own cases ("the rule"), and by one run of each command. Readers have no tests of
it, but those that look a second time behind a command: the copy of an agent into a bot, what is published, a checkpoint.
"""

import json
import os
import secrets
import shutil
import socket
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from rlhf_dialog.atomic_files import LITTER, atomic_file, atomic_folder, remove_whole, repair_swaps, replace_text
from rlhf_dialog.commands import plot_run, report
from rlhf_dialog.commands.command_line import exit_code
from rlhf_dialog.commands.dispatcher import main
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.commands.feedback import main as feedback
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.found_files import agent_folder, check_files, check_part, is_below
from rlhf_dialog.runs.lock import LOCK, lock_folder
from tests.parts import tiny
from tests.parts.classifiers import save_classifier
from tests.parts.evaluations import save_run
from tests.parts.folders import contents
from tests.parts.relevance_models import save_letters
from tests.parts.scalars import save_scalar

SECRET = "sentence-that-must-not-be-shown"
HIDDEN = {"special": {"unk_token": SECRET}, "secret": SECRET, "id": 1}
TRAIN = "train --config own.yaml --experiment_name new --max_iterations 1"
STAGE = "--data_path data --max_steps 1 --output out/m"
EVALUATE = "evaluate --data_path data --max_prompts 2 --output out/e.json"
RUN_FILES = ["config.yaml", "metrics.jsonl", "ledger.jsonl", "replies.jsonl", "evaluation.json", "local_names.json"]
RUN_FILES += ["checkpoints/latest", "checkpoints/iter_000001/trainer.json"]


def rewarded(name, argument, folder):
    return f"{TRAIN} --model_path good --reward_class {{'id':'{name}','args':{{'{argument}':'{folder}'}}}}"


WALK = {  # what is done: the folder, the words, and its files (None: all)
    "train": ("model", TRAIN, None),
    "train with a tokenizer": ("model", f"{TRAIN} --model_path good --env.args.tokenizer_path model", None),
    "train with a reference": ("model", f"{TRAIN} --model_path good --ref_model model", None),
    "train with a critic": ("model", f"{TRAIN} --model_path good --critic_path model --use_share_model false", None),
    "train that goes on": (
        "run/checkpoints",
        f"{TRAIN} --model_path good --experiment_name run --run_dir . --resume",
        ["latest", "iter_000001/trainer.json", "iter_000001/policy.safetensors"],
    ),
    "train-sft that goes on": (
        "old/.sft.unfinished",
        "train-sft --data_path data --max_steps 1 --output old/sft --model_path good --device cpu",
        ["checkpoint-3/complete.json", "checkpoint-3/model.safetensors"],
    ),
    "train with a classifier": ("classifier", rewarded("Intent", "intent_model", "classifier"), None),
    "train with a relevance model": ("relevance", rewarded("RelevanceReward", "model", "relevance"), None),
    "train with a reward model": ("reward", rewarded("RewardModel", "model", "reward"), None),
    "train with a likelihood": ("model", rewarded("LikelihoodPrice", "model", "model"), None),
    "train with an encoder": ("classifier", rewarded("EncoderSimilarity", "model", "classifier"), None),
    "train-sft": ("model", f"train-sft {STAGE} --model_path model", None),
    "train-sft with a tokenizer": ("model", f"train-sft {STAGE} --model_path good --tokenizer_path model", None),
    "train-preference-model": ("model", f"train-preference-model {STAGE} --model_path model", None),
    "train-intent-classifier": ("model", f"train-intent-classifier {STAGE} --model_path model", None),
    "chat": ("model", "chat --agent model", None),
    "chat with a tokenizer": ("model", "chat --agent good --tokenizer model", None),
    "chat with a run": ("run/agent", "chat --agent run", None),
    "chat with a bot": ("bot", "chat --agent bot", None),
    "evaluate": ("model", f"{EVALUATE} --agent model", None),
    "evaluate with a baseline": ("model", f"{EVALUATE} --agent good --baseline model", None),
    "evaluate with a classifier": ("classifier", f"{EVALUATE} --agent good --intent_model classifier", None),
    "evaluate with a judge": ("classifier", f"{EVALUATE} --agent good --judge classifier", None),
    "evaluate with a relevance model": ("relevance", f"{EVALUATE} --agent good --relevance_model relevance", None),
    "evaluate with its run": ("run", f"{EVALUATE} --agent run/agent", ["config.yaml"]),
    "audit with a judge": ("classifier", "audit --config own.yaml --judge classifier", None),
    "plot-run": ("run", "plot-run --run run --output out/plot.png", RUN_FILES),
    "report": ("run", "report run --output out/report.html", RUN_FILES),
    "push-to-hub": ("run/agent", "push-to-hub --agent run/agent --repo polite --dry_run --output out/hub", None),
    "push-to-hub of a run": (
        "run",
        "push-to-hub --agent run/agent --repo polite --dry_run --output out/hub",
        [name for name in RUN_FILES if name != "replies.jsonl"],
    ),
    "push-to-hub of a reward model": ("reward", "push-to-hub --agent reward --repo polite --dry_run", None),
    "export": ("run/checkpoints/iter_000001", "export --run run --output out/agent", None),
    "export of the newest": ("run/checkpoints", "export --run run --output out/agent", ["latest"]),
    "evaluate-policy": ("acts", "evaluate-policy --agent acts --dialogues 1 --output out/e.json", None),
    "evaluate-policy of words": (
        "model",
        "evaluate-policy --agent model --environment restaurant --dialogues 1 --output out/e.json",
        None,
    ),
    "feedback init": ("model", "feedback init --run out/bot --agent model", None),
    "feedback learn from a candidate": ("model", "feedback learn --run bot --candidate model", None),
    "feedback init of a bot": ("bot", "feedback init --run out/bot --agent bot", None),
    **{
        f"feedback {words}": ("bot", f"feedback {words.partition(' ')[0]} --run bot {words.partition(' ')[2]}", None)
        for words in (
            *("learn", "learn --dry_run", "status", "rollback 0001", "forget samples", "serve --port 0"),
            *("export out/x.jsonl --format kto", "import pairs.jsonl", "backup out/x.sqlite"),
        )
    },
}


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    root = tmp_path_factory.mktemp("house")
    root.joinpath("out").mkdir()
    tiny.write_data(root / "data", 25)
    save_run(root / "run", str(root / "data"), 1)
    for name in ("model", "good"):
        shutil.copytree(root / "run/agent", root / name)
    more = root / "model"
    (more / "chat_template.jinja").write_text(tiny.CHATML)
    (more / "additional_chat_templates").mkdir()
    (more / "additional_chat_templates/tool_use.jinja").write_text(tiny.CHATML)
    for name in ("special_tokens_map.json", "added_tokens.json"):
        (more / name).write_text("{}")
    (more / "README.md").write_text("A model.")
    checkpoint = root / "run/checkpoints/iter_000001"
    checkpoint.mkdir(parents=True)
    (checkpoint.parent / "latest").write_text("iter_000001")
    for name in ("trainer.json", "config.yaml", "policy.safetensors"):
        (checkpoint / name).write_text("{}")
    for name in ("ledger.jsonl", "replies.jsonl", "evaluation.json", "local_names.json"):
        (root / "run" / name).write_text("[]")
    (root / "run/metrics.jsonl").write_text('{"iteration": 1, "objective/score": 0.5}\n')
    (root / "old/.sft.unfinished/checkpoint-3").mkdir(parents=True)
    for name in ("complete.json", "model.safetensors"):
        (root / "old/.sft.unfinished/checkpoint-3" / name).write_text("{}")
    save_classifier(root / "classifier", rlhf_dialog_input="pair")
    save_letters(root / "relevance")
    save_scalar(root / "reward", "gpt2")
    acts = {"format_version": 1, "domain_name": "x", "domain_hash": "0", "domain": "restaurant", "error_rate": 0.0}
    acts |= {"user": "friendly", "max_turns": 5, "policy": {"id": "random", "args": {}}, "environment": None}
    (root / "acts").mkdir()
    (root / "acts/policy_agent.json").write_text(json.dumps(acts))
    (root / "acts/weights.safetensors").write_bytes(b"")
    Bot.create(root / "bot", str(root / "good"))
    own = {"model_path": "model", "env": {"args": {"data_path": "data"}}, "reward_class": {"id": "LengthMatch"}}
    own |= {"rollout_batch_size": 2, "max_new_tokens": 4, "max_prompt_length": 60, "run_dir": "out", "device": "cpu"}
    (root / "own.yaml").write_text(yaml.safe_dump(own))
    (root / "pairs.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    (root / "secret").write_text(json.dumps(HIDDEN))
    return root


@contextmanager
def in_place_of(path: Path, kind: str, secret: Path):
    """A link to the secret, or a pipe, in the place of the file, if there is one."""
    kept = path.rename(secret.parent / "kept") if path.exists() else None
    try:
        path.symlink_to(secret) if kind == "link" else os.mkfifo(path)
        yield
    finally:
        path.unlink()
        if kept:
            kept.rename(path)


def outcome(words: str, capfd) -> tuple[int, str]:
    try:
        code = main(words.split())
    except SystemExit as end:
        code = int(end.code or 0)
    return code, "".join(capfd.readouterr())


SLOW = ("a tokenizer", "a reference", "a critic", "its run", "goes on")  # other models load before


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name.endswith(SLOW) else []) for name in WALK]
)
def test_a_command_opens_no_link_out_of_a_folder_and_no_pipe(house, monkeypatch, capfd, name):
    """Where all files of a folder are looked at, one that nothing would read stands for each of them."""
    folder, words, files = WALK[name]
    monkeypatch.chdir(house)
    monkeypatch.setattr("builtins.input", lambda _: "quit")
    for file, kind in [
        *((file, "link") for file in files or ["unread.txt"]),
        ((files or [last_file(house / folder)])[-1], "pipe"),
    ]:
        with in_place_of(house / folder / file, kind, house / "secret"):
            code, said = outcome(words, capfd)
            assert (code, Path(file).name in said, SECRET in said) == (2, True, False), (file, said)
            written = [path for path in (house / "out").rglob("*") if path.is_file()]
            assert not [path for path in written if SECRET.encode() in path.read_bytes()], (file, written)


def last_file(folder: Path) -> str:
    """The last by its name that is not hidden."""
    found = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return [str(path) for path in found if not any(part.startswith(".") for part in path.parts)][-1]


LINKED = {  # a folder of a run that is a link, and the words that read it
    "chat with a run": ("agent", "chat --agent run"),
    "chat": ("agent", "chat --agent run/agent/"),
    "evaluate": ("agent", f"{EVALUATE} --agent run/agent"),
    "evaluate with a baseline": ("best_agent", f"{EVALUATE} --agent good --baseline run/best_agent"),
    "evaluate-policy": ("agent", "evaluate-policy --agent run/agent --dialogues 1 --output out/e.json"),
    "push-to-hub": ("agent", "push-to-hub --agent run/agent --repo polite --dry_run --output out/hub"),
    "export": ("checkpoints", "export --run run --output out/agent"),
    "feedback init": ("agent", "feedback init --run out/bot --agent run"),
    "feedback init of an agent": ("agent", "feedback init --run out/bot --agent run/agent"),
    "feedback learn": ("agent", "feedback learn --run bot --candidate run"),
}


@contextmanager
def moved_out(path: Path, real: Path):
    """The folder is a link to `real`, where it was moved to; one that is not there is that of the agent."""
    made = not path.exists()
    shutil.copytree(path.parent / "agent", real) if made else path.rename(real)
    path.symlink_to(real)
    try:
        yield
    finally:
        path.unlink()
        shutil.rmtree(real) if made else real.rename(path)


@pytest.mark.parametrize("name", LINKED)
def test_a_part_of_a_run_that_is_a_link_is_not_read_unless_it_is_trusted(house, tmp_path, monkeypatch, capfd, name):
    part, words = LINKED[name]
    monkeypatch.chdir(house)
    with moved_out(house / "run" / part, tmp_path / "private"):
        code, said = outcome(words, capfd)
        assert (code, f"run/{part}: is a link" in said, "--trust_config" in said) == (2, True, True), said
        assert list((house / "out").iterdir()) == []
        _, said = outcome(f"{words} --trust_config", capfd)
        assert "is a link" not in said
    for left in (house / "out").iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def test_a_folder_that_the_user_names_may_be_a_link(house, tmp_path):
    (tmp_path / "agent").symlink_to(house / "model")  # beside no file of a run
    (tmp_path / "mine").symlink_to(house / "run")
    for folder in (tmp_path / "agent", tmp_path / "mine", tmp_path / "mine/agent", house / "run/agent"):
        check_part(folder)
    check_part(tmp_path / "mine/agent", of_run=True)


def test_the_folder_of_a_run_stands_for_that_of_its_agent(tmp_path):
    """Where it is no agent itself, and not where the agent is a link out of the run."""
    for place in ("run/agent", "model/agent"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "model/config.json").write_text("{}")
    assert agent_folder(str(tmp_path / "run")) == str(tmp_path / "run/agent")
    assert agent_folder(str(tmp_path / "model")) == str(tmp_path / "model")
    assert agent_folder("user/name") == "user/name"
    (tmp_path / "other").mkdir()
    (tmp_path / "other/agent").symlink_to(tmp_path / "run/agent")
    with pytest.raises(UserError, match="is a link out of the run"):
        agent_folder(str(tmp_path / "other"))
    assert agent_folder(str(tmp_path / "other"), trusted=True) == str(tmp_path / "other/agent")


def test_a_report_is_made_without_checkpoints_that_lie_elsewhere(house, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(house)
    (house / "run/replies.jsonl").rename(tmp_path / "replies.jsonl")  # which is none here
    trainer = house / "run/checkpoints/iter_000001/trainer.json"
    trainer.write_text(json.dumps({"versions": {"ours": "version-of-the-run"}}))
    try:
        assert outcome("report run --output out/report.html", capfd)[0] == 0
        assert "version-of-the-run" in (house / "out/report.html").read_text()
        with moved_out(house / "run/checkpoints", tmp_path / "private"):
            assert outcome("report run --output out/report.html", capfd)[0] == 0
            assert "version-of-the-run" not in (house / "out/report.html").read_text()
    finally:
        trainer.write_text("{}")
        (tmp_path / "replies.jsonl").rename(house / "run/replies.jsonl")
        (house / "out/report.html").unlink()


# the rule


@pytest.fixture
def place(tmp_path):
    """A model in a folder, and in the Hub's cache, beside a secret."""
    for folder in (
        "model/deep",
        *(f"hub/models--{name}" for name in ("ada--m/blobs", "ada--m/snapshots/1f", "eve--m/blobs")),
    ):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("secret", "model/config.json", "hub/models--ada--m/blobs/0a", "hub/models--eve--m/blobs/0b"):
        (tmp_path / file).write_text("{}")
    (tmp_path / "hub/models--ada--m/snapshots/1f/config.json").symlink_to("../../blobs/0a")
    return tmp_path


def refused(folder) -> str:
    with pytest.raises(UserError) as error:
        check_files(folder)
    return str(error.value)


def test_files_links_inside_and_the_blobs_of_the_same_entry_are_opened(place):
    (place / "model/deep/other.json").symlink_to("../config.json")
    (place / "model/circle").symlink_to(".")
    (place / "link").symlink_to("model")
    for folder in ("model", "link", "hub/models--ada--m/snapshots/1f", "absent"):
        check_files(place / folder)
    assert is_below(place / "link/config.json", place / "model")


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("model/chat_template.jinja", "/proc/self/environ"),
        ("model/chat_template.jinja", "../absent"),
        ("model/deep/x.jinja", "../../secret"),
        ("model/more", "../hub"),
        ("model/config2.json", "../hub/models--ada--m/blobs/0a"),
        ("hub/models--ada--m/snapshots/1f/x.json", "../../../models--eve--m/blobs/0b"),
        ("hub/models--ada--m/snapshots/1f/x.json", "../../../../secret"),
    ],
)
def test_a_link_that_leads_elsewhere_is_named(place, path, target):
    (place / path).symlink_to(target)
    folder = place / "model" if path.startswith("model") else (place / path).parent
    assert refused(folder).startswith(f"{place / path}: is a link out of {folder}")
    assert "copy it" in refused(folder)


def test_blobs_count_only_as_files_of_the_same_entry(place):
    entry, blob = place / "hub/models--ada--m/snapshots/1f", place / "hub/models--ada--m/blobs"
    (place / "hub/models--ada--m/model").mkdir()  # only called as in the cache
    (place / "hub/models--ada--m/model/config.json").symlink_to("../blobs/0a")
    assert "config.json: is a link out of" in refused(place / "hub/models--ada--m/model")
    (blob / "0a").unlink()
    (blob / "0a").symlink_to(place / "secret")  # a blob that is a link itself
    assert "config.json: is a link out of" in refused(entry)
    shutil.move(blob, place / "elsewhere")
    blob.symlink_to(place / "elsewhere")
    assert "config.json: is a link out of" in refused(entry)


def test_a_link_to_a_hidden_folder_inside_is_followed(place):
    (place / "model/.hidden").mkdir()
    (place / "model/.hidden/x.jinja").symlink_to(place / "secret")
    (place / "model/additional_chat_templates").symlink_to(".hidden")
    assert "additional_chat_templates/x.jinja: is a link out of" in refused(place / "model")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: socket.socket(socket.AF_UNIX).bind(str(path))])
def test_pipes_and_sockets_are_named(place, make):
    make(place / "model/deep/x.json")
    assert "deep/x.json: is a pipe, a device or a socket" in refused(place / "model")


# links are not written through


@pytest.fixture
def outside(tmp_path):
    """A folder with a file that no command may change; checked when the test has ended."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "mine").write_text("mine")
    yield folder
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"mine": "mine"}


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    rows = [{"iteration": i + 1, "objective/score": i / 10, "objective/kl": 0.0} for i in range(3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_page_and_a_plot_are_not_written_through_a_link(run, outside):
    for name in ("report.html", ".report.html.tmp", "plot.png", ".plot.png.tmp"):
        (run / name).symlink_to(outside / "mine")
    assert report.main([str(run)]) == 0
    assert plot_run.main(["--run", str(run)]) == 0
    for name, begin in (("report.html", b"<!doctype html>"), ("plot.png", b"\x89PNG")):
        assert (run / name).read_bytes().startswith(begin)
        assert not (run / name).is_symlink()


def test_a_link_under_the_very_name_of_a_temporary_file_is_an_error(tmp_path, outside, monkeypatch):
    monkeypatch.setattr(secrets, "token_hex", lambda size: "0" * 2 * size)
    link = tmp_path / ".x.json.00000000.tmp"
    link.symlink_to(outside / "mine")
    with pytest.raises(FileExistsError):
        replace_text(tmp_path / "x.json", "new")
    assert link.is_symlink()
    link.unlink()
    link.symlink_to(outside / "new")
    with pytest.raises(FileExistsError):
        replace_text(tmp_path / "x.json", "new")


def test_what_kills_left_of_files_is_swept_and_what_others_write_now_is_not(tmp_path):
    names = [f".x.json.{letter * 8}.tmp" for letter in "0af"]
    for name in (*names, ".x.json.mine.tmp"):
        (tmp_path / name).write_text("half")
    old = os.stat(tmp_path).st_mtime - LITTER - 1
    os.utime(tmp_path / names[0], (old, old))
    with atomic_file(tmp_path / "x.json", 0o600) as temporary:
        assert {path.name for path in tmp_path.iterdir()} == {*names[1:], ".x.json.mine.tmp", temporary.name}
        assert temporary.stat().st_mode & 0o777 == 0o600
    repair_swaps(tmp_path, ["x.json"])
    assert {path.name for path in tmp_path.iterdir()} == {"x.json", ".x.json.mine.tmp"}
    with pytest.raises(KeyboardInterrupt), atomic_file(tmp_path / "x.json"):
        raise KeyboardInterrupt
    assert {path.name for path in tmp_path.iterdir()} == {"x.json", ".x.json.mine.tmp"}


def test_links_in_the_place_of_the_hidden_folders_of_a_swap_are_removed_alone(tmp_path, outside):
    for name in (".agent.tmp", ".agent.old"):
        (tmp_path / name).symlink_to(outside)
    with atomic_folder(tmp_path / "agent") as folder:
        (folder / "file").write_text("new")
    assert {path.name for path in tmp_path.iterdir()} == {"agent", "outside"}
    for name in (".agent.tmp", ".agent.old"):
        (tmp_path / name).symlink_to(outside)
    repair_swaps(tmp_path, ["agent"])
    (tmp_path / ".agent.tmp").symlink_to(outside)
    remove_whole(tmp_path / "agent")
    assert {path.name for path in tmp_path.iterdir()} == {"outside"}
    (tmp_path / "agent").symlink_to(outside)
    with pytest.raises(UserError, match=r"agent: is a link.*put what it leads to in its place"):
        remove_whole(tmp_path / "agent")


@pytest.mark.parametrize("target", ["mine", "new"])
def test_a_lock_that_is_a_link_is_an_error(tmp_path, outside, target):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(outside / target)
    with (
        pytest.raises(UserError, match=rf"is a link, which must be removed: '.*{LOCK}'"),
        lock_folder(tmp_path / "run"),
    ):
        pytest.fail("it was locked")


def test_the_log_of_an_error_does_not_follow_a_link(tmp_path, outside, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rlhf_dialog_error.log").symlink_to(outside / "mine")
    with exit_code(debug=False) as ending:
        raise ZeroDivisionError
    assert ending.code == 70
    assert "ZeroDivisionError" in (tmp_path / "rlhf_dialog_error.log").read_text()


@pytest.mark.parametrize("place", ["versions", "versions/0001", "night", "feedback.sqlite"])
def test_a_bots_folder_that_is_a_link_is_refused_by_its_name(bot, outside, tmp_path, capsys, place):
    path = bot.folder / place
    if path.exists():
        shutil.move(path, tmp_path / "moved")
    path.symlink_to(tmp_path / "moved" if (tmp_path / "moved").exists() else outside)
    before = contents(tmp_path / "bot")
    for words in (["learn"], ["status"], ["forget", "0" * 16]):
        assert feedback([words[0], "--run", str(bot.folder), *words[1:]]) == 2
        assert f"error: {path}: is a link, which may lead elsewhere" in capsys.readouterr().err
    assert contents(tmp_path / "bot") == before


@pytest.mark.parametrize("name", [".lock", ".lineage.lock"])
def test_a_bots_lock_that_is_a_link_makes_no_file_elsewhere(bot, outside, capsys, name):
    (bot.folder / name).unlink(missing_ok=True)
    (bot.folder / name).symlink_to(outside / "new")
    words = ["learn"] if name == ".lock" else ["forget", "0" * 16]
    assert feedback([words[0], "--run", str(bot.folder), *words[1:]]) == 2
    said = capsys.readouterr().err
    assert f"{bot.folder}: cannot be written: " in said
    assert "is a link, which must be removed" in said
    assert Bot(bot.folder).champion() == "0001"
