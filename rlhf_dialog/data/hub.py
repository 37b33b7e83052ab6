"""What is on this machine and what on the Hugging Face Hub, whether the Hub answers, and models from it. Telemetry is off."""

import functools
import http.client
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from huggingface_hub import constants
from huggingface_hub.errors import HTTPError

from rlhf_dialog.errors import UserError
from rlhf_dialog.found_files import check_files

constants.HF_HUB_DISABLE_TELEMETRY = True  # trl reports every training, transformers every version that asks for a file
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # for the processes that this one starts
os.environ["DISABLE_SAFETENSORS_CONVERSION"] = "1"  # it would ask a Hub service to convert other people's repositories
MODEL_FILES = (  # of a model, its tokenizer and our settings; no pickles, no code
    *("*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json", "rlhf_dialog*.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "*.model", "*.tiktoken", "*.jinja"),
)
LOCAL_NAMES = "local_names.json"  # in a run folder: `local_names` of its settings when it began
LOCAL_KEY = "local_names"  # the same in evaluation.json and report.json
MADE_HERE = ("runs/", "run_results/", "fetched/")  # folders that this program writes
HOW_TO_MAKE = " (where a YAML of this package names it, the first lines of the YAML say how to make it)"


@functools.cache
def hub_reachable() -> bool:
    """Whether the Hub answers, tried once per process for at most five seconds (its own clients retry for half a minute)."""
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        return isinstance(error.reason, ssl.SSLError)  # urllib has other root certificates than the Hub's client
    except (OSError, http.client.HTTPException):
        return False
    return True


def is_local(path: str) -> bool:
    """Whether `path` can only mean a place on this machine: it exists, or it is written like a path."""
    parent = os.path.dirname(path)
    begins_like_one = path.startswith((".", "~", os.sep, *MADE_HERE))
    written_like_one = begins_like_one or path.endswith(("/", ".jsonl")) or path.count("/") > 1
    return written_like_one or os.path.exists(path) or (parent != "" and os.path.isdir(parent))


def local_names(settings: Any) -> list[str]:
    """The texts in these settings that name a file or folder on this machine now: from another folder a name looks like
    one of the Hub."""
    if isinstance(settings, Mapping):
        return local_names([*settings.values()])
    if isinstance(settings, list | tuple):
        return sorted({name for one in settings for name in local_names(one)})
    return [settings] if isinstance(settings, str) and os.path.exists(os.path.expanduser(settings)) else []


def check_folder(path: str, key: str) -> None:
    """Raises UserError when `path`, which `key` named, can only mean a folder on this machine and is none, or is one with a
    file that may not be opened (`found_files`)."""
    if is_local(path) and not os.path.isdir(os.path.expanduser(path)):
        raise UserError(f"{key}: no such folder: '{path}'; give a model folder or a Hub name{HOW_TO_MAKE}")
    check_files(path)


def model_folder(name: str, key: str, with_code: bool = False) -> str:
    """`name` itself when it is a path, else the local copy of that model of the Hub: its MODEL_FILES, `with_code` also its code.

    Downloads what is new; when the Hub cannot be reached, the copy of an earlier download is used. `key` named the model.
    Raises UserError when there is neither, or a file of it may not be opened (`found_files`).
    """
    if is_local(name):
        check_files(name)
        return name
    from huggingface_hub import snapshot_download

    patterns = [*MODEL_FILES, *(["*.py"] if with_code else [])]
    offline = not hub_reachable()
    try:
        folder = snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"], local_files_only=offline)
    except (OSError, ValueError, HTTPError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if offline:
            reason = "which cannot be reached; there is no copy of an earlier download"
        raise UserError(
            f"{key}: '{name}' is no folder here, and not read from the Hub ({reason}); give a local folder, or USER/NAME of "
            "a model that you may read (hf auth login)"
        ) from error
    check_files(folder)
    return folder
