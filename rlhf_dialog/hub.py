"""Load anything from a folder or the Hugging Face Hub with one clear error, and without minutes of retries when offline."""

import functools
import http.client
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from huggingface_hub import constants
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from rlhf_dialog.errors import UserError

transformers_logging.disable_progress_bar()  # its bars count weight shards; ours count the run


@functools.cache
def hub_reachable() -> bool:
    """Whether the Hub answers at all, asked once and for at most five seconds; its own clients retry for half a minute."""
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


def load_pretrained(auto_class: Any, path: str, key: str, **options: Any) -> Any:
    """`auto_class.from_pretrained(path)`, from a local folder or the Hub.

    `key` is the configuration key that named the path. Raises UserError when there is nothing to load or it cannot be read.
    """
    source = str(Path(path).expanduser())
    if is_local(path):
        if not Path(source).is_dir():
            raise UserError(f"{key}: there is no folder '{path}'; give a model folder or a Hub name")
    else:
        options["local_files_only"] = not hub_reachable()
    try:
        return auto_class.from_pretrained(source, **options)
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise UserError(
            f"{key}: '{path}' cannot be loaded as {_kind(auto_class)}. {_reason(path, error, options)}"
        ) from error


def _kind(auto_class: Any) -> str:
    return {"AutoModelForCausalLM": "a causal LM", "AutoTokenizer": "a tokenizer"}.get(
        auto_class.__name__, "a classifier"
    )


def _reason(path: str, error: Exception, options: dict[str, Any]) -> str:
    if options.get("local_files_only"):
        return (
            "No such folder here, not among the downloaded models, and the Hub cannot be reached; give a local folder"
        )
    text = " ".join(str(error).split())
    if "safetensors" in text and options.get("use_safetensors"):
        return "It has no safetensors weights; convert them, or set allow_pickle_weights: true if you trust the file"
    if "trust_remote_code" in text:
        return "It wants to run code of its own; set trust_remote_code: true if you trust it"
    return text[:300]
