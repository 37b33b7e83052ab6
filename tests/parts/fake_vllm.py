"""A server that speaks vLLM's protocol, and answers by our own sampler on weights of its own."""

import copy
import json
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import torch
from safetensors.torch import load_file

from rlhf_dialog.models.generation import Responder, random_numbers
from rlhf_dialog.models.network import num_logits
from tests.parts.servers import serving

# what vLLM would else take from the model's generation_config.json
SENT = {"top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
SENT |= {"stop": [], "ignore_eos": True, "skip_special_tokens": False}


class FakeVLLM:
    """`change(path, body, status, answer)` gives another status and answer, or None after a fault of its own."""

    def __init__(self, responder: Responder, **settings):
        self.responder = Responder(
            copy.deepcopy(responder.policy), responder.encoder, responder.sampling, responder.stop
        )
        self.start = copy.deepcopy(responder.policy.lm.state_dict())
        self.adapters, self.paths, self.prompts, self.lock = {}, [], [], threading.Lock()
        self.length, self.base = 256, "base"
        self.settings = {"model_config": {"dtype": "torch.float32"}, "lora_config": {"max_lora_rank": 16}}
        self.settings |= {"device_config": {"device": "cpu"}, "scheduler_config": {"enable_chunked_prefill": False}}
        self.change = lambda path, body, status, answer: (status, answer)

    def __call__(self, number, content, handler):
        path, body = urlsplit(handler.path).path, json.loads(content or b"null")
        with self.lock:
            self.paths.append(path)
            found = self.change(path, body, *self.answer(path, body))
        if found is None:
            return None
        text = found[1] if isinstance(found[1], bytes) else json.dumps(found[1]).encode()
        return found[0], text

    def answer(self, path, body):
        if path == "/version":
            return 200, {"version": "0.32.0"}
        if path == "/server_info":
            return 200, {"vllm_config": self.settings}
        if path == "/v1/models":
            cards = [{"id": self.base, "root": "its own", "parent": None, "max_model_len": self.length}]
            return 200, {"data": cards + [{"id": name, "parent": self.base} for name in self.adapters]}
        if path == "/tokenize":
            return 200, {
                "tokens": self.responder.encoder.tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]
            }
        if path == "/v1/load_lora_adapter":
            if body["lora_name"] in self.adapters:
                return 400, {"error": {"message": "has already been loaded"}}
            self.adapters[body["lora_name"]] = load_file(Path(body["lora_path"]) / "adapter_model.safetensors")
            return 200, b"Success: LoRA adapter added"
        if path == "/v1/unload_lora_adapter":
            if self.adapters.pop(body["lora_name"], None) is None:
                return 404, {"error": {"message": "The lora adapter cannot be found."}}
            return 200, b"Success"
        if path == "/collective_rpc":
            path = body["kwargs"]["weights_path"]
            self.load(self.start if path == "its own" else load_file(Path(path) / "model.safetensors"))
            return 200, {"results": [None]}
        if path == "/reset_prefix_cache":
            return 200, b""
        return self.complete(body) if path == "/v1/completions" else (404, {"detail": "Not Found"})

    def load(self, state):
        self.responder.policy.lm.load_state_dict(state, strict=False)

    def complete(self, body):
        if body["model"] != self.base and body["model"] not in self.adapters:
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
        assert SENT.items() <= body.items()
        self.prompts.append(body)
        lm, name = self.responder.policy.lm, self.responder.policy.adapter
        for key, x in self.adapters.get(body["model"], {}).items():
            key = key.removeprefix("base_model.model.").replace(".weight", f".{name}.weight")
            lm.get_parameter(key).data.copy_(x)
        if "prompt_logprobs" in body:
            ids = body["prompt"]
            with torch.no_grad():
                rows = lm(torch.tensor([ids])).logits[0].log_softmax(-1)
            told = [{str(i): {"logprob": row[i].item()}} for i, row in zip(ids[1:], rows, strict=False)]
            return 200, {"choices": [{"index": 0, "prompt_logprobs": [None, *told]}]}
        size = self.responder.policy.num_ids or num_logits(lm)
        assert body.get("logit_bias", {}) == {str(i): -100 for i in range(size, num_logits(lm))}
        sampling = replace(self.responder.sampling, max_new_tokens=body["max_tokens"], temperature=body["temperature"])
        seeds = [torch.Generator().manual_seed(body["seed"] + i) for i in range(body["n"])]
        uniform = torch.cat([random_numbers(1, sampling, torch.device("cpu"), seed) for seed in seeds])
        local = self.responder.local(sampling)
        found = local.generate(local.batch([body["prompt"]] * body["n"]), uniform)
        choices = []
        for i, row in enumerate(found.tokens.response_mask):
            ids, logprobs = found.tokens.response_ids[i][row].tolist(), found.logprobs[i][row].tolist()
            reason = "length" if found.truncated[i] else "stop"
            choices.append(
                {"index": i, "token_ids": ids, "logprobs": {"token_logprobs": logprobs}, "finish_reason": reason}
            )
        return 200, {"choices": choices[::-1]}  # in no order


@contextmanager
def fake_vllm(responder: Responder):
    """A fake server, its address in `url`."""
    fake = FakeVLLM(responder)
    with serving(fake) as server:
        fake.url, fake.http, fake.closing = server.url.removesuffix("/score"), server.http, server.closing
        fake.headers = server.headers
        yield fake
