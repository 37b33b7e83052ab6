"""Whole runs with a fake server: what it gets before each rollout, what is left there, and how a run ends that it fails."""

import json
import time
from pathlib import Path

import pytest
import torch

from rlhf_dialog.config.loading import load_config
from rlhf_dialog.data.chat_template import prompt_encoder
from rlhf_dialog.models.generation import Responder, Sampling, StopRule
from rlhf_dialog.models.loading import load_models
from tests.parts import agents
from tests.parts.fake_vllm import fake_vllm
from tests.parts.ppo_runs import rows, settings, without_clocks
from tests.parts.rank_runs import ppo  # noqa: F401  a fixture
from tests.parts.servers import no_proxy  # noqa: F401  a fixture

pytestmark = [pytest.mark.usefixtures("no_proxy"), pytest.mark.slow]
RUN = Path("run_results/ppo")
LORA = {"use_lora": True, "advantage_estimator": "rloo", "num_responses_per_prompt": 2, "temperature": 0.7, "lr": 1e-2}
LOADS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


def responder_of(world, **keys):
    config = load_config({**settings(world), "lr": 1e-3, "critic_lr": 1e-3, **LORA, **keys})
    models = load_models(config, torch.device("cpu"))
    encoder = prompt_encoder(models.tokenizer, config.turn_separator, config.max_prompt_length, None)
    stop = StopRule(models.policy, models.tokenizer, config.turn_separator)
    return Responder(models.policy, encoder, Sampling(config.max_new_tokens, config.temperature), stop)


@pytest.fixture
def fake(world):
    with fake_vllm(responder_of(world)) as server:
        yield server


def words(*fakes, iterations=3, **keys):
    engine = {"urls": [fake.url for fake in fakes], "folder": str(Path("weights").absolute())}
    keys = LORA | {"save_interval": 1, "max_iterations": iterations, "engine": engine} | keys
    return [word for key, value in keys.items() for word in (f"--{key}", json.dumps(value))]


def is_left_clean(*fakes):
    return not any(fake.adapters for fake in fakes) and not [*Path("weights").iterdir()]


def test_a_new_adapter_before_each_rollout_and_nothing_is_left(run, fake):
    assert run(*words(fake)) == 0
    assert all(row["engine/mismatch"] < 1e-5 and row["time/engine"] > 0 < row["time/sync"] for row in rows(RUN))
    names = list(dict.fromkeys(body["model"] for body in fake.prompts))
    run_and_process, iterations = zip(*(name.rsplit("-", 1) for name in names), strict=True)
    assert iterations == ("0", "1", "2")
    assert len(set(run_and_process)) == 1
    assert [path for path in fake.paths if path in LOADS] == [LOADS[0], LOADS[0], LOADS[1], LOADS[0], *LOADS[1:] * 2]
    assert is_left_clean(fake)


def test_files_for_a_model_without_adapters(run, world):
    with fake_vllm(responder_of(world, use_lora=False)) as fake:
        fake.settings["device_config"] = {
            "device": "cuda"
        }  # of a CPU it would be refused, because its embeddings are tied
        assert run(*words(fake, use_lora=False)) == 0
        assert all(row["engine/mismatch"] < 1e-5 for row in rows(RUN))
        assert (
            fake.paths.count("/collective_rpc") == fake.paths.count("/reset_prefix_cache") == 4
        )  # the last: its own again
        assert all(torch.equal(x, fake.start[name]) for name, x in fake.responder.policy.lm.state_dict().items())
        assert is_left_clean(fake)


def test_a_padded_vocabulary_is_compared_as_the_server_reads_prompts(run, world, tmp_path):
    padded = str(agents.save(tmp_path / "padded", vocab_size=400))
    with fake_vllm(responder_of(world, model_path=padded)) as fake:
        assert run(*words(fake, model_path=padded)) == 0
    assert fake.prompts[-1]["logit_bias"]["399"] == -100
    assert all(row["engine/mismatch"] < 1e-5 for row in rows(RUN))


def test_a_run_that_its_server_leaves_goes_on_to_the_same_numbers(run, fake, capsys):
    assert run(*words(fake)) == 0
    whole = without_clocks(RUN)
    asked = len(fake.prompts)
    fake.change = lambda path, body, *found: (500, b"") if len(fake.prompts) > asked + 5 and path[1] == "v" else found
    assert run(*words(fake), "--overwrite") == 3
    assert f"engine {fake.url}: /v1/completions answered 500" in capsys.readouterr().err
    assert 0 < len(rows(RUN)) < 3
    assert fake.adapters  # which nobody could unload
    fake.change = lambda path, body, *found: found
    assert run(*words(fake), "--resume") == 0
    assert without_clocks(RUN) == whole
    assert is_left_clean(fake)


def test_two_servers_give_the_numbers_of_one_and_a_resume_says_that_they_changed(run, fake, world, caplog):
    assert run(*words(fake, iterations=2)) == 0
    one = without_clocks(RUN)
    with fake_vllm(responder_of(world)) as other:
        assert run(*words(fake, other, iterations=2), "--overwrite") == 0
        assert without_clocks(RUN) == one
        assert other.prompts
        assert is_left_clean(fake, other)
    caplog.set_level("INFO")
    assert run(*words(iterations=3, engine=None), "--resume") == 0
    (line,) = (record.message for record in caplog.records if "changed settings" in record.message)
    assert "engine {" in line
    assert "-> null" in line
    assert "engine/mismatch" not in rows(RUN)[2]


def left_behind(fake, run_of):
    """The server and the folder as a process leaves them that is killed."""
    name = next(body["model"] for body in fake.prompts if body["model"] != "base") if run_of else "of-others"
    fake.adapters[name] = {}
    Path("weights", name).mkdir()
    Path("weights", f".{name}.tmp").mkdir()
    return name


def test_what_a_killed_process_left_is_removed_and_what_others_left_is_refused(run, fake, capsys):
    assert run(*words(fake, iterations=1)) == 0
    left_behind(fake, run_of=True)
    assert run(*words(fake, iterations=2), "--resume") == 0
    assert is_left_clean(fake)
    left_behind(fake, run_of=False)
    before = len(fake.prompts)
    assert run(*words(fake, iterations=3), "--resume") == 2
    assert "of-others" in capsys.readouterr().err
    assert [*fake.adapters] == ["of-others"]
    assert len(fake.prompts) == before
    assert len(rows(RUN)) == 2


def test_the_smoke_test_leaves_nothing(run, fake):
    assert run(*words(fake), "--smoke") == 0
    assert fake.prompts
    assert is_left_clean(fake)
    assert not RUN.exists()


def stale(fake):
    """Says yes to each adapter after the first, and keeps that."""
    first = {}

    def change(path, body, *found):
        if path == LOADS[0]:
            first.setdefault("state", fake.adapters[body["lora_name"]])
            fake.adapters[body["lora_name"]] = first["state"]
        return found

    fake.change = change


def other_base(fake):
    for name, parameter in fake.responder.policy.lm.named_parameters():
        if "mlp" in name and "lora" not in name:
            parameter.data.mul_(1.5)


def other_temperature(fake):
    def change(path, body, status, answer):
        for choice in answer.get("choices", ()) if path == "/v1/completions" else ():
            if "logprobs" in choice:
                choice["logprobs"]["token_logprobs"] = [x * 0.7 for x in choice["logprobs"]["token_logprobs"]]
        return status, answer

    fake.change = change


def gone(fake):
    fake.http.shutdown()
    fake.http.server_close()


@pytest.mark.parametrize(
    ("fault", "code", "text", "iterations"),
    [
        (stale, 3, "older adapter", 1),
        (other_temperature, 3, "other weights", 0),
        (other_base, 2, "other weights", 0),
        (gone, 2, "tried 3 times", 0),
    ],
)
def test_a_server_with_other_weights_ends_the_run(run, fake, capsys, fault, code, text, iterations):
    fault(fake)
    assert run(*words(fake)) == code
    said = capsys.readouterr().err
    assert text in said
    assert "Traceback" not in said
    assert (len(rows(RUN)) if (RUN / "metrics.jsonl").exists() else 0) == iterations


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"top_k": 5}, "top_k: 5"),
        ({"top_p": 0.9}, "top_p: 0.9"),
        ({"engine": {"urls": []}}, "engine.urls"),
        ({"engine": {"urls": ["http://127.0.0.1:1"], "weights": "adapter"}, "use_lora": False}, "use_lora: true"),
        ({"engine": {"urls": ["http://127.0.0.1:1"], "token_env": "lower"}}, "engine.token_env"),
        ({"engine": {"urls": ["ftp://127.0.0.1"]}}, "engine.urls.0"),
        ({"turn_separator": "|||"}, "turn_separator"),
        ({"lora_r": 17}, "--max-lora-rank is 16"),
    ],
)
def test_settings_that_an_engine_cannot_follow(run, fake, capsys, keys, text):
    assert run(*words(fake, **keys)) == 2
    assert text in capsys.readouterr().err
    assert not fake.prompts


@pytest.mark.multiprocess
@pytest.mark.parametrize("keys", [{}, {"use_fsdp": True}])
def test_two_ranks_ask_for_their_own_groups(ppo, fake, world, keys):  # noqa: F811
    keys = {"rollout_batch_size": 8, **keys}
    with fake_vllm(responder_of(world)) as other:
        first, second = ppo(2, *words(fake, other, iterations=2, **keys))
        assert (first[0], second[0]) == (0, 0), first[2] + second[2]
        seeds = [body["seed"] for server in (fake, other) for body in server.prompts if "seed" in body]
        assert len(seeds) == len(set(seeds)) == 8  # groups in two iterations
        assert {len([path for path in server.paths if path in LOADS]) for server in (fake, other)} == {4}
        assert is_left_clean(fake, other)
    assert all(row["engine/mismatch"] < 1e-5 for row in rows(RUN))


@pytest.mark.multiprocess
def test_a_fault_of_one_rank_ends_both(ppo, fake, world):  # noqa: F811
    with fake_vllm(responder_of(world)) as other:
        other.change = lambda path, body, *found: (500, b"") if "n" in (body or {}) else found
        first, second = ppo(2, *words(fake, other, rollout_batch_size=4))
    assert (first[0], second[0]) == (3, 3)
    assert f"rank 1: engine {other.url}" in first[2]
