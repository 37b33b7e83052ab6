"""TRL's GRPOTrainer on a tiny model with a watched reward that pays for length: `python -m tests.parts.watched_grpo DIR N`."""

import os
import signal
import sys
from pathlib import Path

from rlhf_dialog import watch

WORDS = ("<pad>", "<eos>", "one", "two", "three", "four", "five", "six", "seven", "eight")


def pays_length(prompts, completions, **columns):
    return [float(len(text.split())) for text in completions]


def train(folder: str, steps: str, kill_after: str = "0", resume: str = "") -> None:
    """`steps` optimizer steps with a checkpoint every 4; the process kills itself after so many; `resume` goes on."""
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Kill(TrainerCallback):
        def on_step_end(self, args, state, control, **more):
            if state.global_step == int(kill_after):
                os.kill(os.getpid(), signal.SIGKILL)

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="one"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "one"}
    sizes = {"vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 64}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes, **layers, pad_token_id=0, eos_token_id=1, bos_token_id=None))
    settings = {"per_device_train_batch_size": 16, "num_generations": 4, "max_completion_length": 32}
    settings |= {"learning_rate": 1e-2, "save_steps": 4, "max_steps": int(steps), "logging_steps": 1000, "seed": 0}
    flags = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "disable_tqdm": True, "report_to": []}
    trainer = GRPOTrainer(
        model=model,
        processing_class=PreTrainedTokenizerFast(tokenizer_object=words, **names),
        reward_funcs=watch(pays_length, Path(folder) / "watched"),
        args=GRPOConfig(output_dir=str(Path(folder) / "trl"), **settings, **flags),
        train_dataset=Dataset.from_dict({"prompt": [f"{a} {b}" for a in WORDS[2:] for b in WORDS[2:]]}),
        callbacks=[Kill()],
    )
    trainer.train(resume_from_checkpoint=bool(resume))


if __name__ == "__main__":
    train(*sys.argv[1:])
