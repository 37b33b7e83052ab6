"""Whether a path is on this machine or on the Hugging Face Hub, and whether the Hub answers. Telemetry is off."""

import functools
import http.client
import os
import ssl
import urllib.error
import urllib.request

from huggingface_hub import constants

constants.HF_HUB_DISABLE_TELEMETRY = True  # trl reports every training, transformers every version that asks for a file
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # for the processes that this one starts
os.environ["DISABLE_SAFETENSORS_CONVERSION"] = "1"  # it would ask a Hub service to convert other people's repositories


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
