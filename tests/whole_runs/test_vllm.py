"""Whole runs with a real vLLM server on this CPU: `make test-engine`."""

import json
import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.parts import tiny
from tests.parts.ppo_runs import rows
from tests.parts.processes import ROOT
from tests.parts.ranks import free_port
from tests.parts.servers import no_proxy  # noqa: F401  a fixture

PYTHON = os.environ.get("ENGINE_PYTHON")
WHY = "ENGINE_PYTHON does not name the Python of an environment with vLLM; run make test-engine"
pytestmark = [
    *(pytest.mark.engine, pytest.mark.slow, pytest.mark.usefixtures("no_proxy")),
    pytest.mark.skipif(PYTHON is None, reason=WHY),
]
RUN = Path("run_results/ppo")
PRETRAINED = ROOT / "fetched" / "smollm2"
VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
}
VARIABLES |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_SERVER_DEV_MODE": "1"}
OPTIONS = (
    "--served-model-name base --host 127.0.0.1 --dtype float32 --max-model-len 256 --enable-lora --max-lora-rank 16"
)
OPTIONS += " --max-loras 1 --max-cpu-loras 2 --logprobs-mode processed_logprobs --no-enable-chunked-prefill"
OPTIONS += " --max-num-batched-tokens 1024"


@contextmanager
def vllm(model: Path, log: Path):
    """A server of the model; its address."""
    port = free_port()
    command = [str(Path(PYTHON).absolute()), "-m", "vllm.entrypoints.openai.api_server", *OPTIONS.split()]
    command += ["--model", str(model), "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as file:
        server = subprocess.Popen(command, env={**os.environ, **VARIABLES}, stdout=file, stderr=file, cwd=log.parent)
        try:
            while not answers(url):
                assert server.poll() is None, log.read_text()[-3000:]
                time.sleep(1)
            yield url
        finally:
            server.terminate()
            server.wait()


def answers(url: str) -> bool:
    try:
        return urlopen(f"{url}/version").status == 200
    except (URLError, ConnectionError):
        return False


@pytest.fixture(scope="module", params=["tiny", "smollm2"])
def server(request, tmp_path_factory):
    """A model's folder, and the address of a server that has it."""
    folder = tmp_path_factory.mktemp("served")
    model = PRETRAINED
    if request.param == "tiny":
        model = folder / "model"
        tiny.llama(hidden_size=64, intermediate_size=128, head_dim=32, initializer_range=0.2).save_pretrained(model)
        tiny.byte_tokenizer().save_pretrained(model)
    elif not model.is_dir():
        pytest.skip(f"{WHY}, which fetches smollm2")
    with vllm(model, folder / "log") as url:
        yield model, url


def words(server, **keys):
    model, url = server
    engine = {"urls": [url], "folder": str(Path("weights").absolute()), "weights": keys.pop("weights", "auto")}
    keys = {"model_path": str(model), "advantage_estimator": "rloo", "num_responses_per_prompt": 2, "lr": 1e-3} | keys
    keys |= {"temperature": 0.7, "max_iterations": 3, "precision": "fp32", "engine": engine}
    return [word for key, value in keys.items() for word in (f"--{key}", json.dumps(value))]


def models_at(url: str) -> list[str]:
    return [card["id"] for card in json.load(urlopen(f"{url}/v1/models"))["data"]]


@pytest.mark.parametrize(
    "keys",
    [{"use_lora": True}, {"use_lora": True, "weights": "files"}, {"lr": 1e-4, "use_share_model": True}],
    ids=["adapter", "merged", "whole"],
)
def test_the_server_samples_from_the_policy_of_each_iteration(run, server, keys, caplog):
    if server[0] == PRETRAINED and "use_lora" not in keys:  # its embeddings are tied
        assert run(*words(server, **keys)) == 2
        return
    assert run(*words(server, **keys)) == 0
    assert [row["engine/mismatch"] < 1e-4 for row in rows(RUN)] == [True] * 3
    assert not [record.message for record in caplog.records if "log-probabilities of the engine" in record.message]
    assert (models_at(server[1]), [*Path("weights").iterdir()]) == (["base"], [])


def test_a_run_after_another_finds_the_model_that_the_server_was_started_with(run, server):
    for weights in ("files", "adapter"):
        keys = {"use_lora": True, "weights": weights, "lr": 1e-2, "max_iterations": 2}
        assert run(*words(server, **keys), "--overwrite") == 0  # else the second sees other weights than its own
