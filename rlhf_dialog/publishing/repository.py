"""A model repository on the Hub: what it holds already, and the one commit that fills it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelInfo, constants, get_token
from huggingface_hub.errors import HTTPError, RepositoryNotFoundError

from rlhf_dialog.data.hub import hub_reachable
from rlhf_dialog.errors import UserError
from rlhf_dialog.publishing.card import RUN_KEY
from rlhf_dialog.publishing.files import Files
from rlhf_dialog.publishing.privacy import without_token

logger = logging.getLogger(__name__)
OF_THE_HUB = (".gitattributes",)  # what a new repository has
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
    """Publish these files, and no others, as one commit; returns the address of the repository, which `with_owner` has named.

    A repository that is not there is created. Raises UserError when it holds something else, when the token does not allow
    it, and when the connection fails; the repository is then as it was.
    """
    api = _api(target.key)
    with _hub_errors(target):
        info = _find(api, target)
        if info is None:
            api.create_repo(target.repo, private=True if target.private else None)
        added = [CommitOperationAdd(path, str(x) if isinstance(x, Path) else x) for path, x in files.items()]
        gone = [CommitOperationDelete(path) for path in _paths(info) if path not in files]
        parent = info.sha if info else None
        api.create_commit(target.repo, [*added, *gone], commit_message="Agent of rlhf-dialog", parent_commit=parent)
    return f"{api.endpoint}/{target.repo}"


def with_owner(target: Target) -> Target:
    """The target as USER/NAME; a NAME alone belongs to the owner of the token, whom the Hub is asked for.

    Raises UserError as `push`, and for a token that may only read.
    """
    with _hub_errors(target):
        user = _api(target.key).whoami()
        if user.get("auth", {}).get("accessToken", {}).get("role") == "read":
            what = f"the token may only read, not write '{target.repo}'; make one that may: {TOKENS}"
            raise UserError(f"{target.key}: {what}")
    return target if "/" in target.repo else replace(target, repo=f"{user['name']}/{target.repo}")


def check_before_run(target: Target) -> None:
    """Raises UserError when a push at the end of a run cannot succeed; warns when that cannot be known now."""
    api = _api(target.key)
    if constants.HF_HUB_OFFLINE:
        raise UserError(f"{target.key}: HF_HUB_OFFLINE forbids to publish; unset it, or leave out {target.key}")
    if not hub_reachable():
        text = "%s: the Hub cannot be reached now; if that is so at the end too, '%s' gets nothing, and the run is kept"
        logger.warning(text, target.key, target.repo)
        return
    named = with_owner(target)
    with _hub_errors(target):
        _find(api, named)


def _api(key: str) -> HfApi:
    token = get_token()
    if token is None:
        raise UserError(f"{key}: there is no access token for the Hub; log in (hf auth login), or set HF_TOKEN")
    return HfApi(token=token)


def _find(api: HfApi, target: Target) -> ModelInfo | None:
    """The repository, None where there is none. Raises UserError when it holds something other than an earlier agent of this
    run, or is public by mistake."""
    try:
        info = api.model_info(target.repo)
    except RepositoryNotFoundError:
        return None
    exists = f"the repository {target.repo} exists"
    if target.private and not info.private:
        where = "make it private in its settings on the Hub, or choose another name"
        raise UserError(f"--private: {exists} and is public; {where}")
    known = (info.card_data.to_dict() if info.card_data else {}).get(RUN_KEY)
    if _paths(info) and not target.overwrite and not (target.run and known == target.run):
        how = "replace its files with rlhf-dialog push-to-hub --overwrite"
        raise UserError(f"{target.key}: {exists} and holds something else; choose another name, or {how}")
    return info


def _paths(info: ModelInfo | None) -> list[str]:
    """The files of the repository but for those that the Hub itself puts there."""
    siblings = (info.siblings or []) if info else []
    return [one.rfilename for one in siblings if one.rfilename not in OF_THE_HUB]


@contextmanager
def _hub_errors(target: Target) -> Iterator[None]:
    """Raises UserError when the Hub or the way to it fails in the block; the token is not in its message."""
    try:
        yield
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        cause = error
        while isinstance(cause, RuntimeError) and cause.__cause__:  # the client names the file, and the cause behind it
            cause = cause.__cause__  # type: ignore[assignment]
        if isinstance(cause, RuntimeError):
            raise
        reason = f"{type(cause).__name__}: {' '.join(without_token(str(cause)).split())[:300]}"
        raise UserError(
            f"{target.key}: '{target.repo}' was not published, and the repository is as it was: {reason}; check the token (hf "
            "auth login) and the connection, then repeat the command"
        ) from None
