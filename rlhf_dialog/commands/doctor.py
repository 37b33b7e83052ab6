"""Show what this machine has, and which runs fit."""

import platform
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_dialog.commands.options import Options, run_command

GIB = 2**30
LIBRARIES = GIB  # bytes that torch, transformers and other packages take, which the forecast leaves out
CHAT_SMOLLM2 = int(3.8 * GIB)  # measured at the peak of configs/chat_smollm2.yaml, with the libraries
LLAMA: dict[str, Any] = {"vocab_size": 128256, "num_attention_heads": 32, "num_key_value_heads": 8, "dtype": "bfloat16"}
LLAMA_1B = LLAMA | {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "tie_word_embeddings": True,
}
LLAMA_8B = {**LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
KEYS: dict[str, Any] = {  # as in configs/chat_smollm2.yaml
    **{"model_path": "llama", "env": {"args": {"data_path": "data"}}, "reward_class": {"id": "LengthMatch"}},
    **{"rollout_batch_size": 64, "num_responses_per_prompt": 4, "use_share_model": True, "num_mini_batch": 4},
    **{"max_prompt_length": 160, "max_new_tokens": 32},
}
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Llama 1B with LoRA": (LLAMA_1B, {"use_lora": True}),
    "Llama 8B with LoRA": (LLAMA_8B, {"use_lora": True}),
    "Llama 8B, all parameters": (LLAMA_8B, {}),
}


class DoctorOptions(Options):
    description = "Show this machine, and which runs fit into its memory. Writes nothing."


def run(options: DoctorOptions) -> None:
    """Print processor, GPU, the memory of the device that computes, and the disk; and for each run whether it fits."""
    import torch
    from transformers import LlamaConfig

    from rlhf_dialog.config.schema import Config
    from rlhf_dialog.distributed.memory import host_memory, model_sizes, needed_bytes
    from rlhf_dialog.models.device import cpu_bfloat16

    free, total = torch.cuda.mem_get_info() if torch.cuda.is_available() else host_memory()
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    print("This machine")
    print(
        f"  processor     {processor()}: {torch.backends.cpu.get_cpu_capability()}, threads of torch: {torch.get_num_threads()}"
    )
    bfloat16 = cpu_bfloat16()
    print(f"  bfloat16      {f'yes ({bfloat16}): add --precision bf16' if bfloat16 else 'no'} on this processor")
    print(f"  GPU           {', '.join(names) or 'none that torch can use'}")
    print(f"  memory        {gib(free)} free of {gib(total)}{' on the GPU' if names else ''}")
    print(f"  disk          {gib(shutil.disk_usage(Path.cwd()).free)} free in {Path.cwd()}")
    print("\nWhat fits, by a forecast of its memory")
    needed = {"configs/chat_smollm2.yaml": CHAT_SMOLLM2}
    for name, (model, keys) in RUNS.items():
        config, sizes = Config.model_validate(KEYS | keys), model_sizes(LlamaConfig(**model))
        needed[name] = needed_bytes(config, sizes, on_cuda=torch.cuda.is_available()) + LIBRARIES
    for name, size in needed.items():
        answer = "fits" if free is None or size <= free else "does not fit"
        print(f"  {name}: {answer}: it needs {gib(size)} of memory, of {gib(free)} free")


def processor() -> str:
    """The processor's name."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.is_file() else ""
    name = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return name[1].strip() if name else platform.processor() or platform.machine()


def gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / GIB:.1f} GiB"


main = partial(run_command, DoctorOptions, run)  # the command line; returns the exit code
