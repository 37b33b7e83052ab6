"""Responses from a fake server that answers by our own sampler: what is asked, what is believed, and what is not."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlhf_dialog.config.schema import EngineConfig
from rlhf_dialog.environments.base import EpisodeLimits
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.models.engine import PROBE, Engine, EngineResponder
from rlhf_dialog.models.generation import Sampling, random_numbers
from rlhf_dialog.training.reading import read_policy
from rlhf_dialog.training.simulated import Simulated
from rlhf_dialog.training.trainer import RolloutEngine
from tests.parts.fake_vllm import fake_vllm
from tests.parts.servers import no_proxy  # noqa: F401
from tests.parts.text_environments import Letters
from tests.parts.tiny import llama
from tests.parts.trainers import make_trainer

pytestmark = pytest.mark.usefixtures("no_proxy")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


def engine_of(urls, folder, **keys):
    keys = {"urls": urls, "folder": str(folder / "weights"), "weights": "files", **keys}
    return Engine(EngineConfig(**keys), folder / "run", use_lora=False)


def engine_responder(responder, engine):
    rest = (
        responder.policy,
        responder.encoder,
        responder.sampling,
        responder.stop,
        responder.limits,
        responder.context_size,
    )
    return EngineResponder(*rest, engine)


def probe_of(responder):
    return responder.encoder.tokenizer(PROBE, add_special_tokens=False)["input_ids"]


@pytest.fixture
def trainer():
    return make_trainer(new_lm=llama, temperature=0.7, num_responses_per_prompt=2, rollout_batch_size=6)


@pytest.fixture
def fake(trainer):
    with fake_vllm(trainer.responder) as server:
        yield server


@pytest.fixture
def engine(trainer, fake, tmp_path):
    engine = engine_of([fake.url], tmp_path)
    engine.meet(probe_of(trainer.responder), 200, 0)
    return engine


def attach(trainer, engine):
    def sync(iteration):
        engine.model = engine.send(trainer.models.policy, iteration)

    trainer.rollout_engine = RolloutEngine(engine_responder(trainer.responder, engine), sync, 2.0)


def test_a_group_is_one_request_and_its_replies_are_those_of_the_policy(trainer, fake, engine):
    responder = engine_responder(trainer.responder, engine)
    prompts = responder.batch([[5, 6], [7], [5, 6], [5, 6]], torch.tensor([0, 1, 0, 2]))
    torch.manual_seed(3)
    found = responder.generate(prompts)
    torch.manual_seed(3)
    seeds = torch.randint(2**62, (3,)).tolist()
    asked = sorted(fake.prompts, key=lambda body: seeds.index(body["seed"]))
    assert [(body["prompt"], body["n"], body["seed"]) for body in asked] == [
        *(([5, 6], 2, seeds[0]), ([7], 1, seeds[1]), ([5, 6], 1, seeds[2]))
    ]
    assert {(x["temperature"], x["max_tokens"], x["logprobs"], x["return_token_ids"]) for x in asked} == {
        (0.7, 5, 0, True)
    }
    assert all(x["stop_token_ids"] == responder.stop.end_ids and "logit_bias" not in x for x in asked)
    ours = read_policy(responder.policy, found.tokens, 0.7, 4)["logprobs"]
    assert torch.allclose(found.sampled_logprobs, ours, atol=1e-5)
    assert found.logprobs is found.entropy is found.values is None
    rows = zip(found.tokens.response_ids, found.tokens.response_mask, strict=True)
    ends = [responder.stop.find_ends(ids[mask][None])[0] for ids, mask in rows]
    assert found.truncated.tolist() == [not end for end in ends]
    of_seeds = [torch.Generator().manual_seed(seeds[0] + i) for i in (0, 1)]
    uniform = torch.cat([random_numbers(1, responder.sampling, torch.device("cpu"), seed) for seed in of_seeds])
    expected = responder.local().generate(responder.batch([[5, 6]] * 2), uniform)
    assert responder.read(expected) == [responder.read(found)[row] for row in (0, 2)]
    assert len({tuple(ids.tolist()) for ids in found.tokens.response_ids[[0, 2, 3]]}) > 1  # equal prompts, other seeds


def test_a_stream_of_a_dialogue_gives_each_row_its_own_seed(trainer, fake, engine):
    responder = engine_responder(trainer.responder, engine)
    uniform = torch.full((2, 5), 0.25, dtype=torch.float64)
    responder.generate(responder.batch([[5, 6], [5, 6]], torch.tensor([0, 0])), uniform)
    assert [(body["n"], body["seed"]) for body in fake.prompts] == [(1, 2**51)] * 2
    assert len(responder.generate(responder.batch([])).tokens) == 0


def test_ids_that_are_no_tokens_get_no_probability(trainer, tmp_path):
    trainer.models.policy.num_ids = 250
    with fake_vllm(trainer.responder) as fake:  # which compares the bias of each request
        engine = engine_of([fake.url], tmp_path)
        engine.meet(probe_of(trainer.responder), 200, 0)
        responder = engine_responder(trainer.responder, engine)
        found = responder.generate(responder.batch([[5, 6]] * 8))
    assert fake.prompts[0]["logit_bias"]["250"] == -100
    assert int(found.tokens.response_ids[found.tokens.response_mask].max()) < 250


@pytest.mark.slow
def test_iterations_with_new_weights_before_each(trainer, fake, engine):
    attach(trainer, engine)
    rows = [trainer.step() for _ in range(3)]
    assert all(row["engine/mismatch"] < 1e-5 for row in rows)
    assert [path for path in fake.paths if path in ("/collective_rpc", "/reset_prefix_cache")] == [
        *("/collective_rpc", "/reset_prefix_cache") * 3
    ]
    assert [path.name for path in engine.folder.iterdir()] == [engine.model]
    engine.leave()
    assert not [*engine.folder.iterdir()]
    assert all(torch.equal(x, fake.start[name]) for name, x in fake.responder.policy.lm.state_dict().items())


@pytest.mark.parametrize("keys", [{"max_prompt_length": 12}, {"context_size": 1, "kl_in": "loss"}, {}])
def test_dialogues_of_several_turns_and_segments(tmp_path, keys):
    source = Simulated(lambda: Letters("so ?"), 3, EpisodeLimits())
    trainer = make_trainer(prompts=source, new_lm=llama, gamma=1.0, **keys)
    with fake_vllm(trainer.responder) as fake:
        engine = engine_of([fake.url], tmp_path)
        engine.meet(probe_of(trainer.responder), 200, 0)
        attach(trainer, engine)
        row = trainer.step()
    assert row["engine/mismatch"] < 1e-5
    assert row["environment/turns"] > 1
    assert {body["n"] for body in fake.prompts} == {1}
    assert (trainer.rollout.segments is not None) == bool(keys)


def choices(change):
    """A fault in each choice of an answer."""

    def changed(path, body, status, answer):
        for choice in answer["choices"] if path == "/v1/completions" else ():
            change(choice)
        return status, answer

    return changed


FAULTS = {
    "an id beyond the vocabulary": (choices(lambda x: x["token_ids"].__setitem__(0, 60000)), "60000"),
    "an id that is none": (choices(lambda x: x["token_ids"].__setitem__(0, True)), "token_ids"),
    "no ids": (choices(lambda x: x.pop("token_ids")), "token_ids None"),
    "an empty reply": (choices(lambda x: x.update(token_ids=[], logprobs={"token_logprobs": []})), "token_ids"),
    "no log-probabilities": (choices(lambda x: x.update(logprobs=None)), "log-probabilities None"),
    "null": (choices(lambda x: x["logprobs"]["token_logprobs"].__setitem__(0, None)), "log-probabilities"),
    "NaN": (choices(lambda x: x["logprobs"]["token_logprobs"].__setitem__(0, float("nan"))), "log-probabilities"),
    "a number too few": (choices(lambda x: x["logprobs"]["token_logprobs"].pop()), "log-probabilities"),
    "a lost end": (choices(lambda x: _cut(x, "stop")), "no end"),
    "an early length": (choices(lambda x: _cut(x, "length")), "no end"),
    "an end that is denied": (choices(lambda x: x.update(finish_reason="abort")), "abort"),
    "one choice twice": (choices(lambda x: x.update(index=0)), "choices"),
    "a choice too few": (lambda path, body, status, answer: (status, {"choices": answer["choices"][1:]}), "choices"),
    "no object": (lambda path, body, status, answer: (200, [1]), "choices"),
}


def _cut(choice, reason):
    """Without the last token, which may be an end."""
    choice.update(token_ids=[1, 2], logprobs={"token_logprobs": [-1.0, -1.0]}, finish_reason=reason)


@pytest.mark.parametrize("fault", FAULTS)
def test_an_answer_with_a_fault_stops_the_run(trainer, fake, engine, fault):
    fake.change, words = FAULTS[fault]
    responder = engine_responder(trainer.responder, engine)
    with pytest.raises(RunStopped) as caught:
        responder.generate(responder.batch([[5, 6]] * 2, torch.tensor([0, 0])))
    assert words in str(caught.value)
    assert fake.url in str(caught.value)
    assert len(fake.prompts) == 1


def broken(answer):
    return lambda path, body, *found: answer if path == "/v1/completions" else found


@pytest.mark.parametrize(
    ("answer", "words", "tries"),
    [
        (
            (500, {"error": {"message": "the engine\x1b[2J is dead " + "x" * 400}}),
            ["500", "the engine\\x1b[2J is dead xx"],
            3,
        ),
        ((500, b""), ["500"], 3),
        ((200, b'{"choi'), ["not JSON"], 3),
        ((404, {"error": {"message": "The model does not exist."}}), ["404", "does not exist"], 1),
        ((400, {"detail": [{"msg": "bad"}]}), ["400", "bad"], 1),
        ((302, b""), ["redirects"], 1),
    ],
)
def test_a_server_that_fails_is_asked_three_times_and_its_words_are_shown(trainer, fake, engine, answer, words, tries):
    fake.change = broken(answer)
    responder = engine_responder(trainer.responder, engine)
    with pytest.raises(RunStopped) as caught:
        responder.generate(responder.batch([[5, 6]]))
    assert len(fake.prompts) == tries
    assert all(word in str(caught.value) for word in [*words, fake.url])
    assert len(str(caught.value)) < 500


def test_a_server_that_hangs_or_is_gone(trainer, fake, engine):
    responder, clients = engine_responder(trainer.responder, engine), engine.clients
    fake.change = lambda *_: fake.closing.wait()
    engine.clients = [replace(client, seconds=0.05) for client in clients]
    with pytest.raises(RunStopped, match="no complete answer"):
        responder.generate(responder.batch([[5, 6]]))
    fake.http.shutdown()
    fake.http.server_close()
    with pytest.raises(RunStopped, match="tried 3 times"):
        responder.generate(responder.batch([[5, 6]]))


def test_two_servers_share_the_groups_and_give_the_replies_of_one(trainer, tmp_path):
    with fake_vllm(trainer.responder) as one, fake_vllm(trainer.responder) as two:
        found = []
        for urls in ([one.url], [one.url, two.url]):
            engine = engine_of(urls, tmp_path)
            engine.meet(probe_of(trainer.responder), 200, 0)
            responder = engine_responder(trainer.responder, engine)
            torch.manual_seed(0)
            found.append(responder.generate(responder.batch([[5, 6], [7], [8, 9]])))
        assert (len(one.prompts), len(two.prompts)) == (3 + 2, 1)
        two.change = broken((500, b""))
        with pytest.raises(RunStopped, match=two.url):
            responder.generate(responder.batch([[5, 6], [7], [8, 9]]))
    assert torch.equal(found[0].tokens.response_ids, found[1].tokens.response_ids)
    assert torch.equal(found[0].sampled_logprobs, found[1].sampled_logprobs)


def short(fake):
    fake.length = 199


def settings(name, **values):
    return lambda fake: fake.settings.__setitem__(name, values)


def answers(path, answer):
    def change(fake):
        fake.change = lambda asked, body, *found: (200, answer) if asked == path else found

    return change


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (short, ["--max-model-len", "199", "200"]),
        (answers("/tokenize", {"tokens": [1, 2]}), ["tokenizer", "[1, 2]"]),
        (lambda fake: fake.adapters.update(other={}), ["adapters", "other"]),
        (settings("model_config", dtype="torch.bfloat16"), ["bfloat16", "float32"]),
        (settings("model_config", logprobs_mode="raw_logprobs"), ["processed_logprobs"]),
        (settings("scheduler_config", enable_chunked_prefill=True), ["--no-enable-chunked-prefill"]),
        (answers("/version", {"object": "list"}), ["vLLM"]),
        (answers("/v1/models", {"data": []}), ["/v1/models"]),
        (answers("/v1/models", "x"), ["/v1/models"]),
    ],
)
def test_what_the_handshake_refuses(trainer, fake, tmp_path, fault, words):
    fault(fake)
    with pytest.raises((UserError, RunStopped)) as caught:
        engine_of([fake.url], tmp_path).meet(probe_of(trainer.responder), 200, 0)
    assert all(word in str(caught.value) for word in [*words, fake.url])


def test_a_cpu_server_that_would_keep_the_output_embedding_is_refused(trainer, fake, tmp_path):
    engine = engine_of([fake.url], tmp_path)
    with pytest.raises(UserError, match="use_lora"):
        engine.meet(probe_of(trainer.responder), 200, 0, is_tied=True)
    fake.settings["device_config"] = {"device": "cuda"}
    engine.meet(probe_of(trainer.responder), 200, 0, is_tied=True)


def test_a_server_without_dev_mode_is_met_but_reads_no_files(trainer, fake, tmp_path):
    hidden = ("/server_info", "/collective_rpc")
    fake.change = lambda path, body, *found: (404, {"detail": "Not Found"}) if path in hidden else found
    engine = engine_of([fake.url], tmp_path)
    engine.meet(probe_of(trainer.responder), 200, 0)
    with pytest.raises(RunStopped, match="VLLM_SERVER_DEV_MODE"):
        engine.send(trainer.models.policy, 0)


@pytest.mark.parametrize("prepare", ["link", "writable", "file"])
def test_a_folder_that_others_could_fill_is_refused(trainer, fake, tmp_path, prepare):
    engine = engine_of([fake.url], tmp_path)
    if prepare == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        engine.folder.symlink_to(tmp_path / "elsewhere")
    elif prepare == "file":
        engine.folder.write_text("")
    else:
        engine.folder.mkdir()
        engine.folder.chmod(0o770)
    with pytest.raises(UserError, match=r"engine\.folder"):
        engine.meet(probe_of(trainer.responder), 200, 0)
    assert not fake.paths


def test_the_default_folder_is_this_users_alone(monkeypatch, tmp_path):
    config = EngineConfig(urls=["http://127.0.0.1:1"])
    assert Engine(config, tmp_path, use_lora=True).folder == Path(f"/dev/shm/rlhf_dialog-{os.geteuid()}")
    engine = engine_of(["http://127.0.0.1:1"], tmp_path)
    engine._own_folder()
    assert engine.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"urls": ["ftp://a"]}, "engine.urls.0"),
        ({"urls": ["http://127.0.0.1:1", "http://127.0.0.1:1/"]}, "twice"),
        ({"urls": ["http://127.0.0.1:1", "http://me:secret@host"]}, "engine.urls.1"),
        ({"urls": ["http://127.0.0.1:1/?key=secret"]}, "engine.urls.0"),
        ({"urls": ["http://127.0.0.1:1"], "token_env": "NO_SUCH_TOKEN"}, "engine.token_env"),
    ],
)
def test_addresses_and_tokens_that_cannot_be(tmp_path, keys, words):
    with pytest.raises(UserError, match=words) as caught:
        engine_of(**{"folder": tmp_path, **keys})
    assert "secret@" not in str(caught.value)
    assert "key=" not in str(caught.value)


def test_a_token_is_sent_with_each_request(trainer, fake, tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINE_TOKEN", "abc")
    engine_of([fake.url], tmp_path, token_env="ENGINE_TOKEN").meet(probe_of(trainer.responder), 200, 0)
    assert {headers["Authorization"] for headers in fake.headers} == {"Bearer abc"}


@pytest.mark.parametrize(
    "sampling", [Sampling(top_k=3), Sampling(top_p=0.9), Sampling(min_new_tokens=2), Sampling(greedy=True)]
)
def test_sampling_that_an_engine_cannot_tell_is_refused(trainer, engine, sampling):
    responder = replace(trainer.responder, sampling=sampling)
    with pytest.raises(UserError, match="top_k: 0"):
        engine_responder(responder, engine)


def test_a_separator_that_is_text_is_refused(trainer, engine):
    trainer.responder.stop.is_text = True
    with pytest.raises(UserError, match="turn_separator"):
        engine_responder(trainer.responder, engine)
