"""The supervised stages in a process that sees two GPUs: one is used, the batches and the weights are those of one."""

import pytest
from torch import nn
from transformers import Trainer, TrainingArguments

from rlhf_dialog.commands.supervised import intent_classifier, preference_model, relevance_model, sft
from rlhf_dialog.training.supervised.hugging_face_trainer import for_one_gpu
from tests.parts import tiny
from tests.parts.scalars import pairs_about_a_word, write_pairs

BATCH = 4
QUICK = f"--batch_size {BATCH} --max_steps 3 --device cpu --pytorch_threads 1".split()
ROWS_OF_AN_EXAMPLE = {preference_model: 2}  # the chosen reply and the rejected one
STAGES = {
    sft: "--n_layer 1 --n_embd 32 --n_head 2 --vocab_size 300 --evals 1",
    intent_classifier: "--num_layers 1 --hidden_size 32 --vocab_size 300 --max_length 48",
    preference_model: "--model_path model --num_samples 0",
    relevance_model: "--hidden_size 32 --vocab_size 300 --members 1 --bank_size 10",
}


@pytest.fixture
def two_gpus(monkeypatch):
    """What transformers says of a process that sees two GPUs; on a CPU, `nn.DataParallel` only calls its module."""
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda self: 2))


def test_the_trainers_batches_are_those_of_one_gpu(two_gpus, tmp_path):
    keys = {"output_dir": str(tmp_path), "per_device_train_batch_size": BATCH, "use_cpu": True}
    assert TrainingArguments(**keys).train_batch_size == 2 * BATCH
    arguments = for_one_gpu(TrainingArguments)(**keys)
    assert (arguments.n_gpu, arguments.train_batch_size) == (1, BATCH)
    trainer = Trainer(model=nn.Linear(1, 1), args=arguments)
    assert not isinstance(trainer._wrap_model(trainer.model), nn.DataParallel)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__.split(".")[-1])
def test_a_stage_ends_with_0_and_has_the_batches_and_weights_of_one_gpu(stage, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    data = write_pairs(tmp_path / "pairs.jsonl", pairs_about_a_word(20))
    if stage is not preference_model:
        data = str(tiny.write_data(tmp_path / "data", 12))
    tiny.gpt2().save_pretrained("model")
    tiny.byte_tokenizer().save_pretrained("model")
    batches, step = [], Trainer.training_step

    def seen(self, model, inputs, *args, **kwargs):
        batches.append(len(inputs["input_ids"]))
        return step(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(Trainer, "training_step", seen)

    def weights(output: str) -> bytes:
        assert stage.main(["--data_path", data, "--output", output, *STAGES[stage].split(), *QUICK]) == 0
        return (tmp_path / output / "model.safetensors").read_bytes()

    of_one = weights("one")
    request.getfixturevalue("two_gpus")
    assert weights("two") == of_one
    assert batches == ([] if stage is relevance_model else [BATCH * ROWS_OF_AN_EXAMPLE.get(stage, 1)] * 6)
