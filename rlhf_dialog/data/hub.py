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
from huggingface_hub.errors import GatedRepoError, HTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

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

MADE_BY = {  # the commands that make what the shipped YAML files read, by the beginning of the path
    "runs/quickstart_": "make quickstart",
    "runs/quickstart/": "make quickstart",
    "runs/month": "make month",
    "runs/chitchat": "make smollm2",
    "runs/ask_back_best": "python -m experiments.smollm2 best_of --config ask_back.yaml --register examples/ask_back.py "
    "--output runs/ask_back_best",
    "fetched/": "make smollm2",
    "runs/restaurant_data": "python scripts/write_restaurant.py",
    "runs/restaurant_sft": "rlhf-dialog train-sft --config sft_restaurant.yaml",
    "runs/dailydialog_sft": "rlhf-dialog train-sft --config sft_dailydialog_small.yaml",
    "runs/dailydialog_intent": "rlhf-dialog train-intent-classifier --config intent_dailydialog_small.yaml",
    "runs/dailydialog_relevance_order": "rlhf-dialog train-relevance-model --config relevance_order_dailydialog_small.yaml",
    "runs/dailydialog_relevance": "rlhf-dialog train-relevance-model --config relevance_dailydialog_small.yaml",
}


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
    written_like_one = path.startswith((".", "~", os.sep)) or path.endswith(("/", ".jsonl")) or path.count("/") > 1
    return written_like_one or os.path.exists(path) or (parent != "" and os.path.isdir(parent))


def check_made(path: str, where: str) -> None:
    """Raises UserError, with the command that makes it, for a path of a shipped YAML file at which nothing is yet."""
    command = next((command for beginning, command in MADE_BY.items() if path.startswith(beginning)), None)
    if command and not os.path.exists(path):
        raise UserError(
            f"{where}: '{path}' does not exist yet; `{command}` makes it, in the folder in which it is started"
        )


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
    check_made(path, key)
    if is_local(path) and not os.path.isdir(os.path.expanduser(path)):
        raise UserError(f"{key}: no such folder: '{path}'; give a model folder or a Hub name")
    check_files(path)


def model_folder(name: str, key: str, with_code: bool = False) -> str:
    """`name` itself when it is a path, else the local copy of that model of the Hub: its MODEL_FILES, `with_code` also its code.

    Downloads what is new; when the Hub cannot be reached, the copy of an earlier download is used. `key` named the model.
    Raises UserError when there is neither, or a file of it may not be opened (`found_files`).
    """
    check_made(name, key)
    if is_local(name):
        check_files(name)
        return name
    from huggingface_hub import snapshot_download

    patterns = [*MODEL_FILES, *(["*.py"] if with_code else [])]
    offline = not hub_reachable()
    try:
        folder = snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"], local_files_only=offline)
    except (OSError, ValueError, HTTPError) as error:
        raise UserError(f"{key}: '{name}' is neither a folder here nor {_missing(error)}") from error
    check_files(folder)
    return folder


def _missing(error: Exception) -> str:
    if isinstance(error, GatedRepoError):
        return "a model that you may read: ask for access on its page of the Hub, then log in (hf auth login)"
    if isinstance(error, RepositoryNotFoundError):
        return "a model on the Hub; check the name, and for a private one the token (hf auth login, or HF_TOKEN)"
    if isinstance(error, LocalEntryNotFoundError):
        return "a downloaded model, and the Hub cannot be reached; give a local folder"
    return f"a model on the Hub ({' '.join(str(error).split())[:200]}); give a local folder, or USER/NAME"
