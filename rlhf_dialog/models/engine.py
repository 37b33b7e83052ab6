"""Responses from vLLM servers beside the run, over HTTP: their requests and answers, and how the policy's weights get there.

Nothing of vLLM is imported. B responses, T response tokens.
"""

import json
import logging
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from stat import S_ISDIR
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from rlhf_dialog.atomic_files import atomic_folder, write_json
from rlhf_dialog.config.schema import EngineConfig
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.http_client import Client, RequestFailed, address_parts, ask_again, authorization, in_threads
from rlhf_dialog.models.generation import Responder, Responses
from rlhf_dialog.models.lora import merged_weights, tied_names
from rlhf_dialog.models.network import num_logits
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.token_batch import TokenBatch, fetch, send
from rlhf_dialog.terminal import visible

logger = logging.getLogger(__name__)
MAX_ANSWER = 1 << 28  # bytes
AT_ONCE = 64  # requests of a process
BACKOFF = 1.0  # seconds before the first request that is sent again
LAST_SECONDS = 30.0  # for each request at the end of the run, whose servers may be gone
PROBE = 'Hello there!  Is it 12:30 already? Größe, 你好, x_1 = f(x);\n\n- I\'d say: "no"... We could meet at the old harbour.'
UNREAD = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/collective_rpc", "/reset_prefix_cache")
NEEDS = {  # with which a server answers these; else with 404
    **dict.fromkeys(UNREAD[:2], "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
    **dict.fromkeys(UNREAD[2:], "VLLM_SERVER_DEV_MODE=1"),
}
NEUTRAL = {  # what is not sent comes from the generation_config.json of the server's model
    **{"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0},
    **{"frequency_penalty": 0.0, "stop": [], "ignore_eos": True, "skip_special_tokens": False},
}


class Reply(NamedTuple):
    """Token ids with the end token, the log-probability of each by the server, and whether the length limit ended them."""

    ids: list[int]
    logprobs: list[float]
    truncated: bool


class Engine:
    """The servers of a run, which have the policy's weights under `model` once rank 0 has sent them.

    `run_folder` identifies the run: what its earlier processes left on servers and in the folder is found by name, and no other.
    Raises UserError for an address or a token that cannot be.
    """

    def __init__(self, config: EngineConfig, run_folder: Path, use_lora: bool):
        self.dtype = torch.float32  # in which the run computes
        self.urls, self.retries = [url.rstrip("/") for url in config.urls], config.retries
        self.sends_adapter = use_lora if config.weights == "auto" else config.weights == "adapter"
        self.folder = Path(config.folder or f"/dev/shm/rlhf_dialog-{os.geteuid()}").expanduser().absolute()
        self.prefix = f"rlhf_dialog-{sha256(str(run_folder.resolve()).encode()).hexdigest()[:8]}-"
        self.process = os.urandom(4).hex()  # numbers of processes come again
        self.model: str | None = None  # the newest weights that all servers have
        self.is_changed = False  # a server has other weights than those that it was started with
        self.bases: list[str] = [""] * len(self.urls)  # what each server calls the model that it was started with,
        self.roots: list[str] = [""] * len(self.urls)  # and where it has read it
        headers = {"Content-Type": "application/json"} | authorization(config.token_env, "engine.token_env")
        self.clients = []
        if len({*self.urls}) < len(self.urls):
            raise UserError("engine.urls: names a server twice; name each once")
        for number, url in enumerate(self.urls):
            parts = address_parts(url, f"engine.urls.{number}")
            if parts.query or parts.fragment:
                raise UserError(f"engine.urls.{number}: must end before ? and #, like http://127.0.0.1:8001")
            self.clients.append(Client(parts, headers, config.timeout_s, MAX_ANSWER))

    # -- requests

    def ask(self, number: int, path: str, body: Any = None, retries: int | None = None) -> Any:
        """The answer of a server, as JSON; None where only its status counts. Raises RunStopped with what the server says."""
        client, content = self.clients[number], None if body is None else json.dumps(body, allow_nan=False).encode()
        method, target = "GET" if body is None else "POST", client.url.path.rstrip("/") + path
        try:
            return ask_again(
                lambda: _parsed(client.ask(method, target, content), path),
                self.retries if retries is None else retries,
                BACKOFF,
                f"engine {self.urls[number]}: {path}",
            )
        except RequestFailed as error:
            said = f": {text}" if (text := _message(error.body)) else ""
            remedy = f"; start it with {NEEDS[path]}" if said.endswith(": Not Found") and path in NEEDS else ""
            raise self.fault(number, f"{path} {error}{said} (tried {error.tried}){remedy}") from None

    def fault(self, number: int, text: str) -> RunStopped:
        return RunStopped(visible(f"engine {self.urls[number]}: {text}"))

    def complete(
        self, bodies: Sequence[dict[str, Any]], first: int, end_ids: Sequence[int], size: int
    ) -> list[list[Reply]]:
        """The replies to each request; the servers share the requests, of which number `first` gets the first.

        `size`: the number of token ids. Raises RunStopped at the first fault; no further request begins then.
        """

        def complete(place: int) -> list[Reply]:
            number, body = (first + place) % len(self.urls), bodies[place]
            try:
                answer = self.ask(number, "/v1/completions", {"model": self.name_at(number), **body})
                return _replies(answer, body["n"], body["max_tokens"], end_ids, size)
            except ValueError as error:
                raise self.fault(number, f"/v1/completions answered with {error}") from None

        return in_threads(range(len(bodies)), complete, AT_ONCE)

    # -- the start and the end of a run

    def meet(self, probe: Sequence[int], length: int, rank: int, is_tied: bool = False) -> None:
        """Check each server, and remove what earlier processes of this run left; raises RunStopped or UserError.

        `probe`: the ids of PROBE by the run's tokenizer; `length`: of the longest prompt and response together; `rank`: of LoRA;
        `is_tied`: embeddings are trained of which the input's is the output's.
        """
        self._own_folder()
        for number, url in enumerate(self.urls):
            version = self.ask(number, "/version")
            if not isinstance(version, dict) or not isinstance(version.get("version"), str):
                raise self.fault(number, "is no vLLM server: /version names none")
            base, adapters = self._models(number)
            self.bases[number], self.roots[number] = base["id"], str(base.get("root"))
            if (limit := base.get("max_model_len") or 0) < length:
                raise UserError(
                    f"engine {url}: --max-model-len is {limit}, but max_prompt_length and max_new_tokens need {length}"
                )
            body = {"model": base["id"], "prompt": PROBE, "add_special_tokens": False}
            if (theirs := _get(self.ask(number, "/tokenize", body), "tokens")) != list(probe):
                raise UserError(
                    f"engine {url}: has another tokenizer than the run ({str(theirs)[:40]}, not {str([*probe])[:40]}, for a "
                    f"text); start it with the run's model_path"
                )
            if foreign := [name for name in adapters if not name.startswith(self.prefix)]:
                names = visible(", ".join(foreign))[:300]
                raise UserError(
                    f"engine {url}: has adapters that are not of this run ({names}), and a server may mix adapters; unload them "
                    "(/v1/unload_lora_adapter), or start a server for this run"
                )
            self._check_settings(number, rank, is_tied)
            logger.info("engine %s: vLLM %s with %s", url, visible(version["version"])[:40], visible(base["id"])[:200])
        self.clean(range(len(self.urls)))

    def _models(self, number: int) -> tuple[dict[str, Any], list[str]]:
        """The model that the server was started with, and the names of its adapters."""
        cards = _get(self.ask(number, "/v1/models"), "data")
        if not isinstance(cards, list) or not all(isinstance(_get(card, "id"), str) for card in cards):
            raise self.fault(number, "/v1/models lists no models")
        bases = [card for card in cards if not card.get("parent")]
        if len(bases) != 1:
            raise self.fault(number, f"/v1/models lists {len(bases)} models without a parent, not one")
        return bases[0], [card["id"] for card in cards if card.get("parent")]

    def _check_settings(self, number: int, rank: int, is_tied: bool) -> None:
        """Raises UserError for settings with which the server cannot work for this run, as far as it tells (in its dev mode)."""
        try:
            settings = _get(self.ask(number, "/server_info?config_format=json", retries=0), "vllm_config")
        except RunStopped:
            return
        dtype = str(_get(_get(settings, "model_config"), "dtype")).removeprefix("torch.")
        most = _get(_get(settings, "lora_config"), "max_lora_rank")
        on_cpu = _get(_get(settings, "device_config"), "device") == "cpu"
        wrong = ""
        if dtype in ("float32", "bfloat16", "float16") and getattr(torch, dtype) != self.dtype:
            wrong = f"--dtype is {dtype}, but the run computes in {str(self.dtype).removeprefix('torch.')}; start it with that"
        elif _get(_get(settings, "model_config"), "logprobs_mode") == "raw_logprobs":
            wrong = "gives log-probabilities before the temperature; start it with --logprobs-mode processed_logprobs"
        elif self.sends_adapter and isinstance(most, int) and most < rank:
            wrong = f"--max-lora-rank is {most}, but lora_r is {rank}; start it with that"
        elif on_cpu and _get(_get(settings, "scheduler_config"), "enable_chunked_prefill"):
            wrong = "dies on a CPU of a seed and a prompt in chunks; start it with --no-enable-chunked-prefill"
        elif on_cpu and is_tied:
            wrong = "keeps its old output embedding on a CPU, where that is the input's, too; set use_lora: true"
        if wrong:
            raise UserError(f"engine {self.urls[number]}: {wrong}")

    def _own_folder(self) -> None:
        """Make the folder for weights. Raises UserError unless only this user can write to it: a server loads what is there."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.folder.lstat()
        except OSError as error:
            raise UserError(f"engine.folder: {self.folder} cannot be made: {error.strerror}") from None
        if not S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            what = "is a link, another user's, or writable by others"
            raise UserError(f"engine.folder: {self.folder} {what}; remove it, or name another folder")

    def clean(self, numbers: Sequence[int]) -> None:
        """Unload and remove all that processes of this run have sent. Raises RunStopped for a server that does not answer."""
        for number in numbers:
            for name in self._models(number)[1]:
                if name.startswith(self.prefix):
                    self.ask(number, "/v1/unload_lora_adapter", {"lora_name": name})
        self._remove_folders()
        self.model = None

    def _remove_folders(self, but: str = "") -> None:
        for path in [*self.folder.glob(f"{self.prefix}*"), *self.folder.glob(f".{self.prefix}*")]:
            if path.name != but:
                shutil.rmtree(path, ignore_errors=True)

    def leave(self) -> None:
        """Bring the servers back to what they were started with, as far as they still answer."""
        self.clients = [replace(x, seconds=min(x.seconds, LAST_SECONDS)) for x in self.clients]
        self.retries = 0
        for number in range(len(self.urls)):
            try:
                if self.is_changed:
                    self._reload(number, self.roots[number])
                self.clean([number])
            except RunStopped as error:
                logger.warning("%s; what this run has loaded there is left", error)
        self._remove_folders()

    # -- weights

    def send(self, policy: Policy, iteration: int) -> str:
        """Write the weights, or the adapter alone, and let all servers load them; returns their name, by which none is stale.

        A server's prefix cache is keyed by the name of an adapter, so no name comes twice. Raises RunStopped.
        """
        name = f"{self.prefix}{self.process}-{iteration}"
        with atomic_folder(self.folder / name) as folder:
            write = write_adapter if self.sends_adapter else write_weights
            write(policy, folder, self.dtype)
        before, path = self.model, str(self.folder / name)
        for number in range(len(self.urls)):
            if not self.sends_adapter:
                self.is_changed = True
                self._reload(number, path)
                continue
            try:
                self.ask(number, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
            except RunStopped:
                if name not in self._models(number)[1]:  # else an attempt arrived whose answer was lost
                    raise
            if before is not None:
                self.ask(number, "/v1/unload_lora_adapter", {"lora_name": before})
        self._remove_folders(but=name)
        return name

    def _reload(self, number: int, path: str) -> None:
        """Let the server read weights; it would keep what it has computed with others in its prefix cache."""
        self.ask(number, "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": path}})
        self.ask(number, "/reset_prefix_cache", {})

    def prompt_logprobs(self, number: int, ids: Sequence[int]) -> list[float]:
        """The log-probabilities, at temperature 1 and without any filter, of all ids but the first. Raises RunStopped."""
        body = {
            "model": self.name_at(number),
            "prompt": [*ids],
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": 0,
        }
        (choice,) = _get(self.ask(number, "/v1/completions", NEUTRAL | body), "choices") or [None]
        found = _get(choice, "prompt_logprobs")
        try:
            return [float(row[str(i)]["logprob"]) for i, row in zip(ids[1:], found[1:], strict=True)]
        except (TypeError, KeyError, ValueError, IndexError):
            raise self.fault(number, "/v1/completions gave no prompt_logprobs of the prompt") from None

    def name_at(self, number: int) -> str:
        """What a request of this server names as its model."""
        return self.model if self.model and self.sends_adapter else self.bases[number]


@torch.no_grad()
def write_adapter(policy: Policy, folder: Path, dtype: torch.dtype) -> None:
    """The policy's adapter as peft and vLLM read it; its weights stay float32, since `dtype` is the server's own affair."""
    layers = {name: module for name, module in policy.lm.named_modules() if hasattr(module, "lora_A")}
    adapter, state = policy.adapter, {}
    for name, layer in layers.items():
        for half in ("lora_A", "lora_B"):
            weight = getattr(layer, half)[adapter].weight
            state[f"base_model.model.{name}.{half}.weight"] = weight.float().contiguous().cpu()
    layer = next(iter(layers.values()))
    config = {
        **{"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": None, "bias": "none"},
        **{"r": layer.r[adapter], "lora_alpha": layer.lora_alpha[adapter], "inference_mode": True},
        "target_modules": sorted({name.rsplit(".", 1)[-1] for name in layers}),
    }
    save_file(state, folder / "adapter_model.safetensors")
    write_json(folder / "adapter_config.json", config)


@torch.no_grad()
def write_weights(policy: Policy, folder: Path, dtype: torch.dtype) -> None:
    """The model with its adapter merged, in `dtype`, as transformers saves it."""
    tied = tied_names(policy.lm)
    weights = ((name, x) for name, x in merged_weights(policy.lm, policy.adapter) if name not in tied)
    state = {name: x.to("cpu", dtype if x.is_floating_point() else x.dtype) for name, x in weights}
    policy.lm.save_pretrained(folder, state_dict=state)


@dataclass(eq=False)
class EngineResponder(Responder):
    """A Responder whose responses an engine samples. What it cannot sample is refused with a UserError.

    `first`: the server that gets the first request, another one for each rank.
    """

    engine: Engine | None = None
    first: int = 0

    def __post_init__(self) -> None:
        sampling = self.sampling
        if sampling.filtered or sampling.min_new_tokens or sampling.greedy or sampling.bias is not None:
            raise UserError(
                "engine: samples at a temperature alone, as it does not tell which tokens a filter leaves; set top_k: 0, "
                "top_p: 1, min_new_tokens: 0"
            )
        if self.stop.is_text:
            raise UserError(
                f"engine: turn_separator {self.stop.separator!r} is text to the tokenizer, but an engine ends replies by token "
                "ids; use chat_template, or a separator that is one token"
            )

    @torch.no_grad()
    def generate(self, prompts: TokenBatch, uniform: Tensor | None = None) -> Responses:
        """One response for each prompt, with `sampled_logprobs`. The rows of a prompt group are one request, of one seed.

        With `uniform` (B, T) each row is a request of its own, whose seed is the row's first number.
        """
        assert self.engine is not None
        groups: dict[int, list[int]] = {}
        single = uniform is not None or prompts.prompt_groups is None
        for row, group in enumerate(range(len(prompts)) if single else prompts.prompt_groups.tolist()):  # type: ignore[union-attr]
            groups.setdefault(group, []).append(row)
        seeds = torch.randint(2**62, (len(groups),)) if uniform is None else (uniform[:, 0] * 2.0**53).long()
        ids, outside = fetch(prompts.prompt_ids)[0], range(self.policy.num_ids or 0, num_logits(self.policy.lm))
        fixed = NEUTRAL | {
            **{"max_tokens": self.sampling.max_new_tokens, "temperature": self.sampling.temperature},
            **{"stop_token_ids": self.stop.end_ids, "logprobs": 0, "return_token_ids": True},
            **({"logit_bias": dict.fromkeys(map(str, outside), -100)} if self.policy.num_ids else {}),
        }
        bodies = [
            {**fixed, "prompt": ids[rows[0]][prompts.prompt_mask[rows[0]]].tolist(), "n": len(rows), "seed": seed}
            for rows, seed in zip(groups.values(), seeds.tolist(), strict=True)
        ]
        self.limits.tell(f"{len(prompts)} responses by the engine")
        with self.limits.measure("engine"):
            size = self.policy.num_ids or num_logits(self.policy.lm)
            answers = self.engine.complete(bodies, self.first, self.stop.end_ids, size)
        replies = dict(
            zip((row for rows in groups.values() for row in rows), (x for a in answers for x in a), strict=True)
        )
        ordered = [replies[row] for row in range(len(prompts))]
        tokens = prompts.with_replies([reply.ids for reply in ordered])
        sampled = torch.zeros(tokens.response_ids.shape)
        for row, reply in enumerate(ordered):
            sampled[row, : len(reply.ids)] = torch.tensor(reply.logprobs)
        truncated = torch.tensor([reply.truncated for reply in ordered], dtype=torch.bool)
        return Responses(tokens, truncated, sampled_logprobs=send(sampled, tokens.device))


def _replies(answer: Any, n: int, max_tokens: int, end_ids: Sequence[int], size: int) -> list[Reply]:
    """The replies of an answer, in the order of their seeds. Raises ValueError with the first fault."""
    choices = _get(answer, "choices")
    if not isinstance(choices, list) or sorted(str(_get(x, "index")) for x in choices) != sorted(map(str, range(n))):
        raise ValueError(f"other choices than one for each of {n} responses")
    replies = []
    for choice in sorted(choices, key=lambda x: x["index"]):
        ids, logprobs = choice.get("token_ids"), _get(choice.get("logprobs"), "token_logprobs")
        if not isinstance(ids, list) or not ids or not all(type(i) is int and 0 <= i < size for i in ids):
            raise ValueError(f"token_ids {str(ids)[:60]}, not with at least one id, each from 0 to {size - 1}")
        numbers = isinstance(logprobs, list) and all(type(x) in (int, float) and math.isfinite(x) for x in logprobs)
        if not numbers or len(logprobs) != len(ids):
            raise ValueError(
                f"log-probabilities {str(logprobs)[:60]}, not with a number for each of {len(ids)} token ids"
            )
        *before, last = (i in end_ids for i in ids)
        reason, length = choice.get("finish_reason"), f"{len(ids)} tokens of at most {max_tokens}"
        if (
            any(before)
            or reason != ("stop" if last else "length")
            or not (last or len(ids) == max_tokens)
            or len(ids) > max_tokens
        ):
            end = "an end inside" if any(before) else "an end" if last else "no end"
            raise ValueError(f"a reply of {length}, with {end} and finish_reason {str(reason)[:20]!r}")
        replies.append(Reply(ids, logprobs, not last))
    return replies


def _get(x: Any, key: str) -> Any:
    """The value of a JSON object; None where there is no object or no such key."""
    return x.get(key) if isinstance(x, dict) else None


def _parsed(answer: bytes, path: str) -> Any:
    """An answer's JSON; None for one of which only the status counts. Raises RequestFailed, after which another may come."""
    if path in UNREAD:
        return None
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        raise RequestFailed("answered with what is not JSON", again=True) from None


def _message(body: bytes) -> str:
    """What a server says of its refusal, at most 300 characters on one line."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    text = _get(_get(answer, "error"), "message") or _get(answer, "detail") or ""
    return visible(" ".join(str(text).split())[:300])
