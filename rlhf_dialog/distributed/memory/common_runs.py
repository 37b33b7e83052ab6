"""The memory of runs that people begin with, and whether this machine has it."""

from dataclasses import dataclass
from typing import Any

from rlhf_dialog.distributed.machine import Machine
from rlhf_dialog.distributed.memory.forecast import forecast
from rlhf_dialog.distributed.memory.model_bytes import Sizes, model_sizes
from rlhf_dialog.distributed.memory.setting import MemorySetting

GIB = 2**30
LIBRARIES = GIB  # bytes that torch, transformers and other packages take, which the forecast leaves out
CHAT_SMOLLM2 = int(3.8 * GIB)  # measured at the peak of configs/chat_smollm2.yaml, with the libraries
LLAMA_1B = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
}
LLAMA_8B = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}


@dataclass(frozen=True)
class CommonRun:
    """bytes at its peak, and what is available, None where the system does not report it; extras: packages that it needs."""

    what: str
    bytes_needed: int
    bytes_available: int | None
    extras: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return self.bytes_available is None or self.bytes_needed <= self.bytes_available


def common_runs(machine: Machine) -> list[CommonRun]:
    """The rows of `rlhf-dialog doctor`, each on the GPU if there is one, else on the processor."""
    small, large = llama_sizes(LLAMA_1B), llama_sizes(LLAMA_8B)
    available = machine.gpu.free if machine.gpu else machine.memory_available
    return [
        CommonRun("configs/chat_smollm2.yaml", CHAT_SMOLLM2, available, ("gguf",)),
        CommonRun("Llama 1B with LoRA", forecast_bytes(small, 16, machine), available),
        CommonRun("Llama 8B with LoRA", forecast_bytes(large, 16, machine), available),
        CommonRun("Llama 8B, all parameters", forecast_bytes(large, 0, machine), available),
    ]


def forecast_bytes(sizes: Sizes, lora_rank: int, machine: Machine) -> int:
    """Bytes of a run as that of configs/chat_smollm2.yaml without its reward; lora_rank 0: every parameter is trained."""
    setting = MemorySetting(
        rows=64,
        microbatch=16,
        prompt=160,
        response=32,
        responses_per_prompt=4,
        critic="none",
        precision="amp" if machine.gpu and machine.gpu.has_bfloat16 else "fp32",
        lora_rank=lora_rank,
        on_cuda=machine.gpu is not None,
    )
    return forecast(sizes, None, None, setting).total + LIBRARIES


def llama_sizes(values: dict[str, Any]) -> Sizes:
    from transformers import LlamaConfig

    return model_sizes(LlamaConfig(**values))
