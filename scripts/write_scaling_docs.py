"""Write the memory tables of docs/SCALING.md, computed with the memory forecast of a run.

python scripts/write_scaling_docs.py [--check]
"""

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import GPT2Config, LlamaConfig, OPTConfig, RobertaConfig

from rlhf_dialog.distributed.memory.forecast import Forecast, forecast
from rlhf_dialog.distributed.memory.model_bytes import Sizes, lora_parameters, model_sizes
from rlhf_dialog.distributed.memory.setting import MemorySetting

PAGE = Path(__file__).resolve().parent.parent / "docs" / "SCALING.md"
BEGIN, END = "<!-- written by scripts/write_scaling_docs.py -->\n", "<!-- end of what is written -->\n"
MODELS = {
    "GPT-2": GPT2Config(),
    "OPT-1.3B": OPTConfig(
        vocab_size=50272,
        max_position_embeddings=2048,
        word_embed_proj_dim=2048,
        dtype="float16",
        hidden_size=2048,
        num_hidden_layers=24,
        ffn_dim=8192,
        num_attention_heads=32,
    ),
    "Llama 3 8B": LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        dtype="bfloat16",
    ),
}
RANK = 16  # the default of lora_r
ROWS = (
    ("0", 1),
    ("1", 8),
    ("2", 8),
    ("2, offload", 8),
    ("3", 8),
    ("3, offload", 1),
    ("3, offload", 8),
)
# as in nlp_ppo.yaml; its 256 responses are divided among the GPUs, and its minibatches have 16
SETTING = MemorySetting(
    rows=256,
    minibatch=16,
    microbatch=16,
    prompt=128,
    response=20,
    critic="shared",
    precision="amp",
    on_cuda=True,
    packing=True,
)
STAGES: dict[str, dict[str, Any]] = {
    "0": {"zero_stage": 0},
    "1": {"zero_stage": 1},
    "2": {"zero_stage": 2},
    "2, offload": {"zero_stage": 2, "offload_optimizer": True},
    "3": {"zero_stage": 3, "frozen_stage": 3},
    "3, offload": {
        "zero_stage": 3,
        "offload_optimizer": True,
        "offload_param": True,
        "frozen_stage": 3,
        "frozen_offload": True,
    },
}
COLUMNS = ("stage", "GPUs", "weights", "gradients", "Adam", "reference", "other", "**GPU**", "host")
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def written() -> str:
    """The generated section: a table for each model, and the effect of single keys."""
    parts = []
    for name, config in MODELS.items():
        sizes = model_sizes(config)
        lora = lora_parameters(sizes, RANK)
        parts.append(
            f"### {name}: {sizes.parameters / 1e6:,.0f} million parameters ({lora / 1e6:,.1f} million with LoRA of rank {RANK})"
        )
        parts += ["\n".join([HEAD, *rows(sizes)]), other_choices(sizes)]
    return "\n\n".join([*parts, classifier()]) + "\n"


def setting_for(stage: str, gpus: int, rank: int) -> MemorySetting:
    shared = replace(SETTING, rows=SETTING.rows // gpus, minibatch=math.ceil(SETTING.step_rows / gpus))
    return replace(shared, world_size=gpus, lora_rank=rank, narrows=stage == "0", **STAGES[stage])


def rows(sizes: Sizes) -> Iterator[str]:
    """The rows of a table, in GiB without the unit."""
    for stage, gpus in ROWS:
        found = forecast(sizes, None, None, setting_for(stage, gpus, 0))
        numbers = [gib(count).removesuffix(" GiB") for count in (*columns(found), found.total, found.host_total)]
        numbers[-2] = f"**{numbers[-2]}**"
        yield f"| {' | '.join([stage, str(gpus), *numbers])} |"


def columns(found: Forecast) -> list[int]:
    """Bytes on the GPU at the peak: weights, gradients and optimizer of the policy, the reference, and the rest."""
    starts = (
        ("weights of the policy",),
        ("gradients of",),
        ("Adam's state",),
        ("weights of the reference", "reference on"),
    )
    standing = found.items_in(found.peak)
    named = [sum(part.bytes for part in standing if part.name.startswith(start)) for start in starts]
    return [*named, found.total - sum(named)]


def other_choices(sizes: Sizes) -> str:
    """The effect of single keys on one GPU at stage 0."""
    plain = setting_for("0", 1, 0)
    critic = replace(plain, critic="separate")
    recompute = replace(plain, activation_checkpointing=True)
    variants = {
        "`use_lora: true`": replace(plain, lora_rank=RANK),
        "`use_share_model: false`": critic,
        "`use_share_model: false` with LoRA": replace(critic, lora_rank=RANK),
        "`precision: fp32`": replace(plain, precision="fp32"),
        "`activation_checkpointing: true`": recompute,
        "`activation_checkpointing: true` with LoRA": replace(recompute, lora_rank=RANK),
        "fp16 weights (`use_fp16`, stage 2)": replace(plain, precision="half", zero_stage=2),
    }
    items = [f"- {name}: {gib(forecast(sizes, None, None, variant).total)}" for name, variant in variants.items()]
    total = gib(forecast(sizes, None, None, plain).total)
    return "\n".join([f"On one GPU without ZeRO, these keys change the {total} of the first row to:", *items])


def classifier() -> str:
    """What the intent classifier adds to everything else."""
    sizes = model_sizes(RobertaConfig())
    return f"An intent classifier of RoBERTa-base's size adds {gib(4 * sizes.parameters)} to every row."


def gib(count: float) -> str:
    """`0.46 GiB`, `12 GiB`; nothing is a dash."""
    size = count / 2**30
    return "-" if not count else f"{size:.0f} GiB" if size >= 10 else f"{size:.2f} GiB"


def page(text: str) -> str:
    """The page with the new section."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + written() + "\n" + END + rest.split(END)[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only check whether the tables are up to date")
    options = parser.parse_args()
    current = PAGE.read_text(encoding="utf-8")
    if options.check:
        print(
            "up to date"
            if current == page(current)
            else f"{PAGE.name} is out of date; run python scripts/write_scaling_docs.py"
        )
        return 0 if current == page(current) else 1
    PAGE.write_text(page(current), encoding="utf-8")
    print(f"written: {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
