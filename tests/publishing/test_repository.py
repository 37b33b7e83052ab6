"""One commit or none, on a stand-in for the Hub: what exists already, tokens, failures in the middle, and the way back."""

import time
import traceback

import pytest

from rlhf_dialog.data import hub
from rlhf_dialog.errors import UserError
from rlhf_dialog.publishing.repository import Target, check_before_run, push, with_owner
from tests.parts.hub_server import TOKEN

README = b"---\nlicense: other\nrlhf_dialog_run: first\n---\n# x\n"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "w").write_bytes(b"weights" * 100)
    return {"model.safetensors": tmp_path / "w", "config.json": b"{}", "README.md": README}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    """Between the attempts of the Hub's client."""
    monkeypatch.setattr(time, "sleep", lambda _: None)


def target(**options) -> Target:
    return Target(**{"repo": "ada/polite", "key": "--repo", **options})


def test_a_new_repository_gets_one_commit(files, hub_server):
    assert push(files, target()) == f"{hub_server.url}/ada/polite"
    repo = hub_server.repos["ada/polite"]
    assert (repo.private, len(repo.commits)) == (False, 2)
    wanted = {"model.safetensors": b"weights" * 100, "config.json": b"{}", "README.md": README}
    assert {name: x for name, x in repo.files.items() if name != ".gitattributes"} == wanted


@pytest.mark.parametrize(
    ("kind", "failure", "says"),
    [
        ("blob", 507, "507"),
        ("blob", "drop", "RemoteProtocolError"),
        ("preupload", 403, "403"),
        ("commit", 412, "412"),
        ("info", 401, "401"),
    ],
)
def test_a_failure_in_the_middle_publishes_nothing_and_the_same_push_goes_on(kind, failure, says, files, hub_server):
    hub_server.fails = {kind: failure}
    with pytest.raises(UserError) as caught:
        push(files, target(private=True))
    assert str(caught.value).startswith("--repo: 'ada/polite' was not published, and the repository is as it was: ")
    assert says in str(caught.value)
    assert TOKEN not in "".join(traceback.format_exception(caught.value)), "the server repeats it"
    assert all(len(repo.commits) == 1 for repo in hub_server.repos.values())
    hub_server.fails, hub_server.requests = {}, []
    push(files, target(private=True))
    assert set(hub_server.repos["ada/polite"].files) == {".gitattributes", *files}
    assert hub_server.repos["ada/polite"].private
    assert ("blob" in hub_server.kinds()) == (kind != "commit"), "what is there is not uploaded again"


def test_a_repository_with_something_else_is_refused_but_for_overwrite(files, hub_server):
    push(files, target())
    hub_server.repos["ada/polite"].commit({"other.txt": b"x", "README.md": b"no header"})
    for run in (None, "first"):
        with pytest.raises(
            UserError, match=r"--repo: the repository ada/polite exists and holds something else.*--overwrite"
        ):
            push(files, target(run=run))
    push(files, target(overwrite=True))
    repo = hub_server.repos["ada/polite"]
    assert set(repo.files) == set(files)
    assert len(repo.commits) == 4, "the Hub keeps what was there"


def test_an_earlier_agent_of_the_same_run_gets_another_commit(files, hub_server):
    push(files, target(run="first"))
    with pytest.raises(UserError, match="--private: the repository ada/polite exists and is public"):
        push(files, target(private=True, overwrite=True))
    push({**files, "config.json": b'{"a": 1}'}, target(run="first"))
    assert hub_server.repos["ada/polite"].files["config.json"] == b'{"a": 1}'
    with pytest.raises(UserError, match="holds something else"):
        push(files, target(run="second"))


def test_a_change_between_the_look_and_the_commit_is_not_overwritten(files, hub_server, monkeypatch):
    push(files, target(run="first"))
    asked = hub_server._preupload

    def preupload(*words, repo):
        hub_server.repos[repo].commit({"others.txt": b"x"})
        asked(*words, repo=repo)

    monkeypatch.setattr(hub_server, "_preupload", preupload)
    with pytest.raises(UserError, match=r"was not published, .*412"):
        push({**files, "config.json": b'{"a": 1}'}, target(run="first"))
    assert hub_server.repos["ada/polite"].files == {"others.txt": b"x"}


def test_a_token_that_may_only_read_or_writes_to_another_name(files, hub_server):
    with pytest.raises(UserError, match=r"'bob/polite' was not published, .*403"):
        push(files, target(repo="bob/polite"))
    hub_server.role = "read"
    with pytest.raises(UserError, match="--repo: the token may only read, not write 'polite'"):
        with_owner(target(repo="polite"))
    hub_server.role = "write"
    assert with_owner(target(repo="polite")).repo == "ada/polite"


def test_no_network(files, hub_server, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"was not published, .*ConnectError"):
        push(files, target())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"was not published, .*Offline"):
        push(files, target())


# before a run


def of_run(**options) -> Target:
    return target(key="push_to_hub", run="first", **options)


def test_a_run_that_can_be_pushed_begins_and_one_without_a_connection_with_a_warning(
    hub_server, files, monkeypatch, caplog
):
    check_before_run(of_run())
    assert hub_server.repos == {}
    push(files, of_run())
    check_before_run(of_run())
    assert not caplog.messages
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    hub.hub_reachable.cache_clear()
    check_before_run(of_run())
    assert "push_to_hub: the Hub cannot be reached now" in caplog.text


def test_a_run_that_cannot_be_pushed_does_not_begin(hub_server, files, monkeypatch):
    push(files, target())
    hub_server.repos["ada/polite"].commit({"other.txt": b"x"})
    with pytest.raises(UserError, match="push_to_hub: the repository ada/polite exists and holds something else"):
        check_before_run(of_run())
    hub_server.fails = {"whoami": 401}
    with pytest.raises(UserError, match=r"push_to_hub: .*Invalid user token"):
        check_before_run(of_run())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="push_to_hub: HF_HUB_OFFLINE forbids"):
        check_before_run(of_run())
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UserError, match="push_to_hub: there is no access token"):
        check_before_run(of_run())
