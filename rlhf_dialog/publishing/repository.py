"""A model repository on the Hub: what it holds already, and the one commit that fills it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelInfo, constants, get_token
from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

from rlhf_dialog.data.hub import hub_reachable
from rlhf_dialog.errors import UserError
from rlhf_dialog.publishing.files import Files
from rlhf_dialog.publishing.privacy import without_token

logger = logging.getLogger(__name__)
RUN_KEY = "rlhf_dialog_run"  # in the header of a card: the run whose agent the repository holds
OF_THE_HUB = (".gitattributes",)  # what a new repository has
OF_THE_CLIENT = (HTTPError, OSError, ValueError)  # what its connection, its files and its checks raise
TOKENS = "https://huggingface.co/settings/tokens"


@dataclass(frozen=True)
class Target:
    """Where a model shall go. `key` is the option or key that named the repository, `run` the run that the model is of."""

    repo: str
    key: str
    private: bool = False
    overwrite: bool = False
    run: str | None = None


def push(files: Files, target: Target) -> str:
    """Publish the files as one commit; returns the address of the repository.

    A repository that is not there is created. Raises UserError when it holds something else, when the token does not allow
    it, and when the connection fails; the repository is then as it was.
    """
    api = _api(target.key)
    with _hub_errors(target):
        name = _full_name(api, target)
        info = _existing(api, name)
        _refuse_another(info, name, target)
        if info is None:
            api.create_repo(name, private=True if target.private else None)
        operations = [CommitOperationAdd(path, str(x) if isinstance(x, Path) else x) for path, x in files.items()]
        old = [path for path in _paths(info) if path not in files]
        gone = [CommitOperationDelete(path) for path in old]
        parent = info.sha if info else None
        api.create_commit(name, [*operations, *gone], commit_message="Agent of rlhf-dialog", parent_commit=parent)
    return f"{api.endpoint}/{name}"


def with_owner(target: Target) -> Target:
    """The target as USER/NAME; a NAME alone belongs to the owner of the token, whom the Hub is asked for. Raises as `push`."""
    if "/" in target.repo:
        return target
    with _hub_errors(target):
        return replace(target, repo=_full_name(_api(target.key), target))


def check_before_run(target: Target) -> None:
    """Raises UserError when a push at the end of a run cannot succeed; warns when that cannot be known now."""
    api = _api(target.key)
    if constants.HF_HUB_OFFLINE:
        raise UserError(
            f"{target.key}: HF_HUB_OFFLINE forbids to publish '{target.repo}'; unset it, or leave out {target.key}"
        )
    if not hub_reachable():
        text = "%s: the Hub cannot be reached now; if that is so at the end too, '%s' gets nothing, and the run is kept"
        logger.warning(text, target.key, target.repo)
        return
    with _hub_errors(target):
        name = _full_name(api, target)
        _refuse_another(_existing(api, name), name, target)


def _api(key: str) -> HfApi:
    token = get_token()
    if token is None:
        raise UserError(f"{key}: there is no access token for the Hub; log in (hf auth login), or set HF_TOKEN")
    return HfApi(token=token)


def _full_name(api: HfApi, target: Target) -> str:
    """USER/NAME. Raises UserError for a token that may only read."""
    user = api.whoami()
    role = user.get("auth", {}).get("accessToken", {}).get("role")
    if role == "read":
        raise UserError(
            f"{target.key}: the token may only read, not write '{target.repo}'; make one that may: {TOKENS}"
        )
    if not isinstance(name := user.get("name"), str):
        raise ValueError("the server that answers for the Hub does not say whose the token is; check HF_ENDPOINT")
    return target.repo if "/" in target.repo else f"{name}/{target.repo}"


def _existing(api: HfApi, name: str) -> ModelInfo | None:
    try:
        return api.model_info(name)
    except RepositoryNotFoundError:
        return None


def _paths(info: ModelInfo | None) -> list[str]:
    """The files of the repository but for those that the Hub itself puts there."""
    siblings = (info.siblings or []) if info else []
    return [one.rfilename for one in siblings if one.rfilename not in OF_THE_HUB]


def _refuse_another(info: ModelInfo | None, name: str, target: Target) -> None:
    """Raises UserError when the repository holds something other than an earlier agent of this run, or is public by mistake."""
    if info is None:
        return
    if target.private and not info.private:
        raise UserError(
            f"--private: the repository {name} exists and is public; make it private in its settings on the Hub, or choose "
            "another name"
        )
    known = (info.card_data.to_dict() if info.card_data else {}).get(RUN_KEY)
    if _paths(info) and not target.overwrite and not (target.run and known == target.run):
        how = (
            "replace its files with --overwrite"
            if target.key.startswith("--")
            else ("replace its files with rlhf-dialog push-to-hub --overwrite when the run has ended")
        )
        raise UserError(
            f"{target.key}: the repository {name} exists and holds something else; choose another name, or {how}"
        )


@contextmanager
def _hub_errors(target: Target) -> Iterator[None]:
    """Raises UserError when the Hub or the way to it fails in the block; the token is not in its message."""
    try:
        yield
    except (*OF_THE_CLIENT, RuntimeError) as error:
        cause: BaseException = error
        while isinstance(cause, RuntimeError) and cause.__cause__:  # the client names the file, and the cause behind it
            cause = cause.__cause__
        if not isinstance(cause, OF_THE_CLIENT):
            raise
        reason = without_token(_reason(cause))
        raise UserError(f"{target.key}: '{target.repo}' was not published: {reason}") from None


def _reason(error: BaseException) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE forbids connections; unset it"
    if status == 401:
        return f"the Hub does not accept the token; log in again (hf auth login), or make a new one: {TOKENS}"
    if status == 403:
        return f"the token has no write access to it; make one that has, or choose a name of your own: {TOKENS}"
    if status in (409, 412):
        return "somebody changed the repository meanwhile; look at it, then repeat the command"
    if status and status >= 500:
        return f"the Hub failed (status {status}), and the repository is as it was; repeat the command later"
    if status is None and isinstance(error, HTTPError):
        return f"the Hub cannot be reached ({type(error).__name__}); check the connection, then repeat the command"
    return " ".join(str(error).split())[:300] or type(error).__name__
