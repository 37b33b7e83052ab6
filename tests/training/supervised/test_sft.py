import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_dialog.commands.supervised import train_sft as command
from rlhf_dialog.data.agent_template import own_template
from rlhf_dialog.data.chat_template import prompt_encoder
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompt_ids import PromptEncoder
from rlhf_dialog.feedback.sessions.loaded_versions import load_agent
from rlhf_dialog.models import policy
from rlhf_dialog.training.supervised import sft
from rlhf_dialog.training.supervised.checkpoints import Checkpoints
from rlhf_dialog.training.supervised.stage import Encoded
from tests.parts import tiny
from tests.parts.saved_models import save


def test_labels_cover_exactly_reply_and_separator_and_eos_where_it_is_learnt():
    tokenizer = tiny.byte_tokenizer()
    encoder = PromptEncoder(tokenizer, "<EOU>", 128)
    dialogue = Dialogue(["Hi .", "Yes ?"], reference="No .")
    row = sft.example(encoder, dialogue)
    tokens = tokenizer.convert_ids_to_tokens(row["input_ids"])
    assert tokens == [*"HiĠ.", "<EOU>", *"ĠYesĠ?", "<EOU>", *"ĠNoĠ.", "<EOU>"]
    assert row["labels"][:-6] == [-100] * 12
    assert row["labels"][-6:] == row["input_ids"][-6:]
    assert row["length"] == 18
    with_eos = sft.example(encoder, dialogue, learn_eos=True)
    assert with_eos["input_ids"] == [*row["input_ids"], tokenizer.eos_token_id]
    assert with_eos["labels"] == [*row["labels"], tokenizer.eos_token_id]
    cut = sft.example(encoder, dialogue, positions=15)
    assert cut == {"input_ids": row["input_ids"][:15], "labels": row["labels"][:15], "length": 15}


def test_the_configured_separator_inside_a_turn_becomes_a_space(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"dialog": ["a | b", "c <EOU> d"]}\n')
    config = sft.SFTConfig(data_path=str(tmp_path), output="x", turn_separator="|")
    (prompt,) = sft.read_prompts(config, "train", None, lambda line: None)
    assert (prompt.prompt_turns, prompt.reference) == (["a b"], "c <EOU> d")


def test_merging_prefixes_keeps_every_labelled_token_with_the_tokens_before_it():
    encoder = PromptEncoder(tiny.byte_tokenizer(), "<EOU>", 128)
    turns = ["Hi .", "Yes ?", "No .", "Why ?"]
    rows = [sft.example(encoder, Dialogue(turns[:i], reference=turns[i])) for i in (1, 2, 3)]
    rows += [sft.example(encoder, Dialogue(["Other ."], reference="Turn ."))]
    merged = [row for _, row in sft.merge_prefixes(rows)]
    assert len(merged) == 2
    assert merged[1] == rows[3]

    def facts(some_rows):
        return sorted(
            (row["input_ids"][:i], label) for row in some_rows for i, label in enumerate(row["labels"]) if label != -100
        )

    assert facts(merged) == facts(rows)
    window = [sft.example(encoder, Dialogue(turns[:2], reference=turns[2])), rows[3]]
    assert [*sft.merge_prefixes(window)] == [(1, row) for row in window]


def fine_tuned(config, tokenizer, rows, held_out):
    stage = sft.SFT(config, Path(config.output), print)
    stage.model, stage.tokenizer, stage.watch = tiny.gpt2(), tokenizer, sft.HeldOutLoss(held_out, config)
    stage.fine_tune(Encoded(rows, dict))
    return stage


def test_messages_of_weight_0_are_read_and_never_learned(tmp_path):
    replies = {"broken": 0, "Good": 1, "bad": False, "Fine": None}
    said = [{"role": "assistant", "content": text, "weight": weight} for text, weight in replies.items()]
    messages = [one for reply in said for one in ({"role": "user", "content": "Hi"}, reply)]
    liked = [{"prompt": "Hi", "completion": text, "label": text == "Good"} for text in replies]
    for rows, text, learned in (
        (
            [{"messages": messages}],
            "Hi<EOU> broken<EOU> Hi<EOU> Good<EOU> Hi<EOU> bad<EOU> Hi<EOU> Fine<EOU>",
            "GoodFine",
        ),
        (liked, "Hi<EOU> Good<EOU>", "Good"),
    ):
        (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
        config = sft.SFTConfig(data_path=str(tmp_path / "a.jsonl"), output="x", turn_separator="<EOU>", context_size=99)
        tokenizer = tiny.byte_tokenizer()
        encoder = prompt_encoder(tokenizer, "<EOU>", 200)
        ((_, row),) = sft.merge_prefixes(
            [sft.example(encoder, one) for one in sft.read_prompts(config, "train", None, print)]
        )
        assert tokenizer.decode(row["input_ids"]) == text
        labels = tokenizer.decode([label for label in row["labels"] if label != sft.IGNORED])
        assert labels.replace("<EOU>", "").replace(" ", "") == learned


def test_padding_is_masked_by_length_and_has_no_label():
    """A token of the id with which rows are padded is learned where it is in a row."""
    longer = {"input_ids": [7, 0, 9], "labels": [-100, 0, 9], "length": 3}
    batch = sft.pad_right([{"input_ids": [5, 0], "labels": [-100, 0], "length": 2}, longer])
    assert batch["input_ids"].tolist() == [[5, 0, 0], [7, 0, 9]]
    assert batch["labels"].tolist() == [[-100, 0, -100], [-100, 0, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]


def test_token_loss_is_the_mean_over_labelled_tokens_one_row_at_a_time():
    encoder, lm = PromptEncoder(tiny.byte_tokenizer(), "<EOU>", 128), tiny.gpt2()
    dialogues = [Dialogue(turns[:1], reference=turns[1]) for turns, _ in tiny.dialogues(5)]
    rows = [sft.example(encoder, dialogue) for dialogue in dialogues]
    losses = []
    with torch.no_grad():
        for row in rows:
            logprobs = lm.eval()(torch.tensor([row["input_ids"]])).logits[0].log_softmax(-1)
            for position, label in enumerate(row["labels"]):
                if label != -100:
                    losses.append(-logprobs[position - 1, label].item())
    lm.train()
    assert sft.token_loss(lm, rows, batch_size=2) == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    assert lm.training


@pytest.mark.parametrize(("num_tiles", "training"), [(1, False), (5, True)])
def test_loss_and_gradient_are_those_of_cross_entropy_on_whole_logits(monkeypatch, training, num_tiles):
    """In training mode with the same dropout."""
    encoder = PromptEncoder(tiny.byte_tokenizer(), "<EOU>", 128)
    turns = ["Hi .", "Yes ? I am here .", "No .", "Why ?"]
    rows = [
        row
        for _, row in sft.merge_prefixes(sft.example(encoder, Dialogue(turns[:i], reference=turns[i])) for i in (1, 3))
    ]
    rows += [sft.example(encoder, Dialogue(["Who ?"], reference="I ."))]
    batch = sft.pad_right(rows)
    whole, tiled = tiny.gpt2().double(), tiny.gpt2().double()
    seen, labels = batch["attention_mask"][:, :-1], batch["labels"][:, 1:]
    torch.manual_seed(1)
    logits = whole.train(training)(input_ids=batch["input_ids"][:, :-1], attention_mask=seen).logits
    expected = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    expected.backward()
    count = int((labels != -100).sum())
    assert 0 < count < seen.sum() < seen.numel()
    monkeypatch.setattr(policy, "LOGITS_AT_ONCE", -(-count // num_tiles) * logits.shape[-1])
    made = policy.Policy(tiled.eval())
    assert made.has_plain_head
    tiled.train(training)
    torch.manual_seed(1)
    loss = sft.summed_loss(made, batch)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-10)
    torch.manual_seed(1)
    share = sft.SFTTrainer.compute_loss(SimpleNamespace(policy=made), None, batch, num_items_in_batch=4)
    assert share.item() == pytest.approx(expected.item() / 4, rel=1e-10)
    for name, parameter in whole.named_parameters():
        assert torch.allclose(tiled.get_parameter(name).grad, parameter.grad, rtol=1e-8, atol=1e-10), name


def watched(monkeypatch, losses, **keys):
    """What a training of seven steps, whose weight is the number of the step, measures; and the step that it stops behind."""
    left, lm = iter(losses), torch.nn.Linear(1, 1)
    monkeypatch.setattr(sft, "token_loss", lambda lm, rows, batch_size: next(left))
    watch = sft.HeldOutLoss([{}], sft.SFTConfig(data_path="d", output="o", **keys))
    watch.measure(lm, 0)
    for step in range(1, 8):
        lm.weight.data.fill_(step)
        control = SimpleNamespace(should_training_stop=False)
        watch.on_step_end(None, SimpleNamespace(global_step=step, max_steps=7), control, model=lm)
        if control.should_training_stop:
            return watch, step
    return watch, None


def test_the_weights_of_the_lowest_validation_loss_are_kept_until_patience_ends(monkeypatch):
    watch, stopped = watched(monkeypatch, [3.0, 2.0, 2.0, 2.5], evals=4, patience=2)
    assert [point["step"] for point in watch.points] == [0, 2, 4, 6]
    assert (stopped, watch.best_step, watch.best_weights["weight"].item()) == (6, 2, 2.0)
    assert watch.points[1]["perplexity"] == pytest.approx(2.718281828**2)
    watch, stopped = watched(monkeypatch, [3.0, 2.0, 2.0, 2.5], evals=3)
    assert [point["step"] for point in watch.points] == [0, 3, 6, 7]
    assert (stopped, watch.best_weights) == (None, None)


@pytest.mark.slow
def test_a_resumed_training_reports_the_losses_of_one_that_was_not_interrupted(tmp_path, monkeypatch):
    """It is killed between two losses, each of which is a mean over two steps."""
    tokenizer = tiny.byte_tokenizer()
    encoder = PromptEncoder(tokenizer, "<EOU>", 128)
    rows = [sft.example(encoder, Dialogue(turns[:1], reference=turns[1])) for turns, _ in tiny.dialogues(8)]
    keys = {"data_path": str(tmp_path / "data.jsonl"), "batch_size": 2, "max_steps": 22, "device": "cpu", "evals": 1}
    (tmp_path / "data.jsonl").write_text("{}")

    def losses(name):
        return fine_tuned(sft.SFTConfig(output=str(tmp_path / name), **keys), tokenizer, rows, []).train_losses

    whole = losses("whole")
    assert [one["step"] for one in whole] == [*range(2, 23, 2)]

    def kill_after_five(self, args, state, control, **_):
        control.should_save = state.global_step == 5
        if state.global_step == 6:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "on_step_end", kill_after_five)
        with pytest.raises(KeyboardInterrupt):
            losses("killed")
    assert losses("killed") == whole


def test_a_template_that_was_not_learned_is_put_away(tmp_path):
    for separator in ("|", "chat_template"):
        config = sft.SFTConfig(data_path="d", output="o", turn_separator=separator)
        stage = sft.SFT(config, tmp_path / separator, print)
        stage.model, stage.tokenizer, stage.training = tiny.gpt2(), tiny.chat_tokenizer(), []
        stage.encoder = prompt_encoder(stage.tokenizer, separator, 20)
        stage.save()
        template = AutoTokenizer.from_pretrained(tmp_path / separator).chat_template
        assert (template == tiny.CHATML) == (separator == "chat_template")
        assert own_template(template) == stage.tokenizer.chat_template == tiny.CHATML
    stage.tokenizer, stage.folder = tiny.byte_tokenizer(), tmp_path / "without"
    stage.encoder = prompt_encoder(stage.tokenizer, "|", 20)
    stage.save()
    assert AutoTokenizer.from_pretrained(stage.folder).chat_template is None


@pytest.mark.parametrize("second", ["Be kind .", "Be brief ."])
def test_a_chat_with_the_model_has_the_system_message_that_all_rows_had(tmp_path, second):
    config = sft.SFTConfig(data_path="d", output="o", turn_separator="chat_template", max_prompt_length=99)
    stage = sft.SFT(config, tmp_path / "model", print)
    stage.model, stage.tokenizer = tiny.gpt2(vocab_size=261), tiny.chat_tokenizer()
    stage.training = [Dialogue(["a"], system=system) for system in ("Be kind .", second)]
    stage.encoder = prompt_encoder(stage.tokenizer, "chat_template", 99)
    stage.save()
    learned = stage.encoder.encode_prompt(["Hi"], "Be kind ." if second == "Be kind ." else None)
    assert load_agent(stage.folder).encoder.encode_prompt(["Hi"]) == learned


def test_prompts_of_the_data_that_lose_part_of_their_newest_turn_are_counted(tmp_path, caplog):
    for split, turn in (("train", "far too long"), ("validation", "short")):
        (tmp_path / f"{split}.jsonl").write_text(f'{{"dialog": ["{turn}", "c d"]}}\n')
    keys = {"data_path": str(tmp_path), "output": "x", "max_prompt_length": 8, "n_layer": 1, "n_head": 1, "n_embd": 8}
    stage = sft.SFT(sft.SFTConfig(**keys, vocab_size=300), tmp_path / "x", lambda line: None)
    stage.training, stage.held_out = stage.read()
    stage.start()
    (line,) = [line for line in caplog.messages if "newest turn" in line]
    assert line.startswith("1 of 2 prompts lose the beginning of their newest turn: max_prompt_length is 8, and ")


def tiny_rows(count=8):
    encoder = PromptEncoder(tiny.byte_tokenizer(), "<EOU>", 128)
    return [sft.example(encoder, Dialogue(turns[:1], reference=turns[1])) for turns, _ in tiny.dialogues(count)]


@pytest.mark.slow
def test_microbatches_change_rounding_alone(tmp_path, monkeypatch):
    """Also where they hold different numbers of labelled tokens: the loss is the mean over those of the whole batch."""
    trained, before = {}, tiny.llama().double().state_dict()
    monkeypatch.setattr(tiny, "gpt2", tiny.llama)  # no dropout
    for size in (None, 8, 2):
        keys = {"max_steps": 3, "batch_size": 8, "learning_rate": 1e-3, "device": "cpu"}
        config = sft.SFTConfig(
            data_path="unused", output=str(tmp_path / str(size)), per_device_microbatch_size=size, **keys
        )
        trained[size] = fine_tuned(config, tiny.byte_tokenizer(), tiny_rows(), []).model.double().state_dict()
    for name, weight in trained[None].items():
        assert torch.equal(trained[8][name], weight)
        assert (weight - before[name]).abs().max() > 1e-4
        assert (trained[2][name] - weight).norm() < 1e-2 * (weight - before[name]).norm()


@pytest.mark.slow
def test_lora_trains_adapters_and_saves_a_whole_model(tmp_path):
    base, data, output = save(tmp_path / "base", tiny.llama()), tiny.write_data(tmp_path / "data"), tmp_path / "out"
    keys = ["--max_steps", "8", "--batch_size", "8", "--learning_rate", "1e-2", "--patience", "8", "--device", "cpu"]
    keys += ["--use_lora", "true", "--lora_r", "2", "--activation_checkpointing", "true"]
    assert command(["--data_path", str(data), "--output", str(output), "--model_path", base, *keys]) == 0
    report = json.loads((output / "training.json").read_text(encoding="utf-8"))
    widths = [(32, 32)] * 4 + [(32, 64)] * 3
    assert report["num_parameters"] == 2 * sum(2 * (a + b) for a, b in widths)
    losses = [point["loss"] for point in report["validation"]]
    assert min(losses) < losses[0] - 0.1
    before, after = (AutoModelForCausalLM.from_pretrained(folder).eval() for folder in (base, output))
    ids = torch.tensor([tiny_rows(1)[0]["input_ids"]])
    assert torch.equal(before.get_input_embeddings().weight, after.get_input_embeddings().weight)
    assert not torch.allclose(before(ids).logits, after(ids).logits, atol=1e-3)
    assert {name for name, _ in after.named_parameters()} == {name for name, _ in before.named_parameters()}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["--per_device_microbatch_size", "3"], "per_device_microbatch_size: 3 does not divide batch_size 32"),
        (["--use_lora", "true"], "use_lora: a model from scratch has nothing to adapt"),
    ],
)
def test_keys_that_contradict_each_other(tmp_path, keys, message, capsys):
    assert command(["--data_path", "unused", "--output", str(tmp_path / "out"), *keys]) == 2
    assert message in capsys.readouterr().err
