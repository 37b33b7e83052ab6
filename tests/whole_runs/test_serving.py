"""An agent in programs of others: transformers' pipeline and server with OpenAI's client, and TRL's trainer."""

import re
import subprocess
import threading

import pytest
import torch
from datasets import Dataset
from transformers import pipeline
from transformers.utils.import_utils import is_serve_available
from trl import SFTConfig, SFTTrainer

from rlhf_dialog.data.chat_template import prompt_encoder
from rlhf_dialog.models.chat_agent import AGENT_FILE, AgentSettings, ChatAgent
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.saved_agent import save_agent
from tests.parts import tiny
from tests.parts.processes import start_python
from tests.parts.servers import no_proxy  # noqa: F401  a fixture

pytestmark = pytest.mark.slow

LINES = {
    "Hello .": "Hi !",
    "A room , please .": "For one ?",
    "For two .": "Yes .",
    "How much ?": "Ten .",
    "Bye .": "Bye !",
}
KINDS = {
    "chat template": (tiny.chat_tokenizer, {"turn_separator": "chat_template", "system_prompt": "Be brief ."}),
    "separator token": (tiny.byte_tokenizer, {}),
    "separator text": (tiny.chat_tokenizer, {"turn_separator": "|"}),
}
SIZES = {"context_size": 3, "max_new_tokens": 14, "max_prompt_length": 200, "temperature": 0.7, "top_p": 0.9}


def learned_agent(folder, kind: str) -> ChatAgent:
    """A tiny model that has learned the five answers by heart, saved as an agent."""
    make, keys = KINDS[kind]
    tokenizer, settings = make(), AgentSettings(**SIZES, **keys)
    encoder = prompt_encoder(tokenizer, settings.turn_separator, settings.max_prompt_length, settings.system_prompt)
    lm = tiny.llama(vocab_size=len(tokenizer))
    agent = ChatAgent(Policy(lm).eval(), encoder, settings)
    turns = [turn for pair in LINES.items() for turn in pair]
    prompts = [agent.encoder.encode_prompt(turns[max(0, i - 3) : i]) for i in range(1, 10, 2)]
    targets = [agent.encoder.encode_target(turns[i]) for i in range(1, 10, 2)]
    rows = [torch.tensor([prompt + target]) for prompt, target in zip(prompts, targets, strict=True)]
    optimizer = torch.optim.Adam(lm.parameters(), lr=4e-3)
    for _ in range(60):
        for row, prompt in zip(rows, prompts, strict=True):
            logits = lm(row).logits[0, len(prompt) - 1 : -1]
            torch.nn.functional.cross_entropy(logits, row[0, len(prompt) :]).backward()
        optimizer.step()
        optimizer.zero_grad()
    save_agent(folder, agent.policy, tokenizer, settings)
    return ChatAgent.load(folder)


@pytest.fixture(scope="module", params=KINDS)
def served(request, tmp_path_factory):
    """The folder of an agent, and the agent as our chat answers at temperature 0."""
    folder = tmp_path_factory.mktemp("served") / "agent"
    agent = learned_agent(folder, request.param)
    agent.settings = agent.settings.model_copy(update={"chat_temperature": 0.0})
    return folder, agent


def our_talk(agent: ChatAgent) -> list[dict[str, str]]:
    """Five turns and our answers to them, as messages."""
    turns: list[str] = []
    for line in LINES:
        turns += [line, agent.chat(line, turns)]
    assert dict(zip(turns[::2], turns[1::2], strict=True)) == LINES
    return [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]


def said(content: str | None, agent: ChatAgent) -> str:
    """The reply in what another program calls the content."""
    return str(content).split(agent.settings.turn_separator)[0].strip()


def test_a_pipeline_answers_as_our_chat(served):
    folder, agent = served
    talk = our_talk(agent)
    answer = pipeline("text-generation", model=str(folder), device="cpu")
    for end in range(1, len(talk), 2):
        whole = answer(talk[:end], do_sample=False)[0]["generated_text"]
        assert whole[:-1] == talk[:end]
        assert (whole[-1]["role"], said(whole[-1]["content"], agent)) == ("assistant", talk[end]["content"])
    sampled = answer(talk[:1])[0]["generated_text"][-1]["content"]  # with the folder's own sampling
    assert len(agent.encoder.tokenizer(sampled, add_special_tokens=False)["input_ids"]) <= SIZES["max_new_tokens"]


@pytest.fixture(scope="module")
def server(served):
    """The address at which `transformers serve` answers with the agent."""
    if not is_serve_available():
        pytest.skip("needs pip install -e '.[serve]'")
    words = ("-m", "transformers.cli.transformers", "serve", served[0], "--device", "cpu")
    process = start_python(*words, "--host", "127.0.0.1", "--port", "0", stderr=subprocess.PIPE)
    try:
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if match := re.search(r"running on (http://\S+)", line):
                break
        else:
            pytest.fail("".join(lines))
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield match[1]
    finally:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("no_proxy")
@pytest.mark.parametrize("stop", [False, True])
def test_the_openai_client_gets_what_our_chat_says(served, server, stop):
    """Five turns at temperature 0, streamed and not; `stop` is for a separator that is no token."""
    openai = pytest.importorskip("openai")
    folder, agent = served
    talk, separator = our_talk(agent), agent.settings.turn_separator
    client = openai.OpenAI(base_url=f"{server}/v1", api_key="none")
    options = {"model": str(folder), "temperature": 0, "max_tokens": agent.settings.max_new_tokens}
    if stop:
        options["stop"] = [separator]
    for end in range(1, len(talk), 2):
        whole = client.chat.completions.create(messages=talk[:end], **options)
        assert said(whole.choices[0].message.content, agent) == talk[end]["content"]
        assert whole.choices[0].finish_reason == "stop"
        ids = agent.encoder.encode_prompt([message["content"] for message in talk[:end]][-3:])
        assert whole.usage.prompt_tokens == len(ids)
        chunks = client.chat.completions.create(messages=talk[:end], stream=True, **options)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert said(text, agent) == talk[end]["content"]


def test_trl_trains_on_the_ids_that_our_fine_tuning_trains_on(served, tmp_path):
    """Whole dialogues of at most `context_size` turns and a reply; the result is talked to as the agent is."""
    folder, agent = served
    turns = [turn for pair in LINES.items() for turn in pair]
    rows = [turns[max(0, i - 3) : i + 1] for i in (1, 3, 5)]
    chats = [
        [{"role": ("assistant", "user")[(len(row) - i) % 2], "content": x} for i, x in enumerate(row, 1)]
        for row in rows
    ]
    data = Dataset.from_list([{"messages": chat} for chat in chats])
    few = {"max_steps": 2, "per_device_train_batch_size": 3, "report_to": [], "save_strategy": "no"}
    config = SFTConfig(str(tmp_path / "trl"), bf16=False, use_cpu=True, **few)
    trainer = SFTTrainer(str(folder), config, train_dataset=data)
    for row, ids in zip(rows, trainer.train_dataset["input_ids"], strict=True):
        expected = agent.encoder.encode_prompt(row[:-1]) + agent.encoder.encode_target(row[-1])
        assert list(ids[: len(expected)]) == expected
        assert not agent.encoder.tokenizer.decode(ids[len(expected) :]).strip()
    trainer.train()
    trainer.save_model(str(tmp_path / "trl"))
    assert not (tmp_path / "trl" / AGENT_FILE).exists()
    trained = ChatAgent.load(tmp_path / "trl")
    assert trained.settings == agent.settings.model_copy(update={"chat_temperature": None})  # another test's choice
    assert trained.encoder.encode_prompt(["Hi"]) == agent.encoder.encode_prompt(["Hi"])
