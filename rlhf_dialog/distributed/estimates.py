"""What runs on a machine, and how long it takes: scaled from times that were measured on one machine, the reference.

Every time is an estimate. Products of matrices are most of the work of a language model, so a time is scaled by the speed of
products alone: `reference time * work * reference GFLOP/s / GFLOP/s here`. The work of a model is its number of parameters
times the passes over the tokens, beside that of the reference's run. What does not grow with products (small models, a GPU
that waits for its next kernel) makes the time longer than that.
"""

from dataclasses import dataclass
from typing import Any

from rlhf_dialog.distributed.machine import Gpu, Machine
from rlhf_dialog.distributed.memory.forecast import Forecast, forecast, human
from rlhf_dialog.distributed.memory.model_bytes import Sizes, sizes_of
from rlhf_dialog.distributed.memory.setting import Setting

LIBRARIES = 8 * 2**27  # bytes that torch, transformers and the rest take, which the forecast leaves out
PASSES_LORA, PASSES_FULL = 4, 5  # sampling, reference, forward, and backward: to inputs alone, or to weights as well
GIB = 2**30


@dataclass(frozen=True)
class Reference:
    """The machine and the runs that estimates are scaled from.

    The products are the best of some hundred short calls, on a machine that did other work too, as it did in the run whose
    iterations and memory these are. The quickstart's time is that of CI, a day before. In quiet hours this machine computes
    twice as many products.
    """

    date: str
    processor: str
    threads: int
    float32: float  # GFLOP/s
    quickstart: float  # seconds of `make quickstart`, packages installed
    iteration: float  # seconds of one iteration of configs/chat_smollm2.yaml
    parameters: float  # of its model
    memory: int  # bytes of its run at the peak, with the libraries


REFERENCE = Reference(
    date="2026-11-23",
    processor="AMD EPYC with avx512_bf16",
    threads=2,
    float32=210,
    quickstart=214,
    iteration=35,
    parameters=134.5e6,
    memory=int(3.8 * GIB),
)
RESPONSES = 64  # of an iteration of configs/chat_smollm2.yaml
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
class Estimate:
    """One run. seconds: None where it does not fit; bytes at its peak, and what is available, None where nobody knows."""

    what: str
    fits: bool
    seconds: float | None
    per: str  # what the seconds are of: the run, or an iteration of it
    formula: str
    bytes_needed: int | None = None
    bytes_available: int | None = None
    extras: tuple[str, ...] = ()  # optional packages that it needs


def estimates(machine: Machine, chat_iterations: int | None) -> list[Estimate]:
    """The runs that people begin with. chat_iterations: those of configs/chat_smollm2.yaml, None where it is not there."""
    small, large = (_sizes(values) for values in (LLAMA_1B, LLAMA_8B))
    rows = [quickstart(machine)]
    if chat_iterations is not None:
        rows.append(chat(machine, chat_iterations))
    rows.append(of_model("Llama 1B with LoRA", small, 16, machine))
    rows.append(of_model("Llama 8B with LoRA", large, 16, machine))
    rows.append(of_model("Llama 8B, all parameters", large, 0, machine))
    return rows


def quickstart(machine: Machine) -> Estimate:
    """`make quickstart` on the processor, after the installation."""
    speed = REFERENCE.float32 / machine.float32
    formula = f"{REFERENCE.quickstart:g} s x {_ratio(machine.float32)}"
    return Estimate("make quickstart", True, REFERENCE.quickstart * speed, "a run", formula)


def chat(machine: Machine, iterations: int) -> Estimate:
    """The run of configs/chat_smollm2.yaml, after its models are there."""
    gpu, available = machine.gpu, _available(machine)
    rate = _rate(machine)
    fits = available is None or REFERENCE.memory <= available
    seconds = iterations * REFERENCE.iteration * REFERENCE.float32 / rate
    formula = f"{iterations} iterations x {REFERENCE.iteration:g} s x {_ratio(rate)}{_at_least(gpu)}"
    return Estimate(
        what="configs/chat_smollm2.yaml",
        fits=fits,
        seconds=seconds if fits else None,
        per="a run",
        formula=formula,
        bytes_needed=REFERENCE.memory,
        bytes_available=available,
        extras=("peft", "gguf"),
    )


def of_model(what: str, sizes: Sizes, lora_rank: int, machine: Machine) -> Estimate:
    """An iteration as that of configs/chat_smollm2.yaml with another model; lora_rank 0: every parameter is trained."""
    needed, available = memory_of(sizes, lora_rank, machine).total + LIBRARIES, _available(machine)
    passes, rate = PASSES_LORA if lora_rank else PASSES_FULL, _rate(machine)
    fits = available is None or needed <= available
    size = sizes.parameters / REFERENCE.parameters
    seconds = REFERENCE.iteration * size * passes / PASSES_LORA * REFERENCE.float32 / rate
    formula = (
        f"{REFERENCE.iteration:g} s x {sizes.parameters / 1e6:.0f}M / {REFERENCE.parameters / 1e6:.0f}M parameters "
        f"x {passes} / {PASSES_LORA} passes x {_ratio(rate)}{_at_least(machine.gpu)}"
    )
    return Estimate(
        what=what,
        fits=fits,
        seconds=seconds if fits else None,
        per=f"an iteration of {RESPONSES} responses",
        formula=formula if fits else f"memory forecast + {human(LIBRARIES)} for the libraries",
        bytes_needed=needed,
        bytes_available=available,
        extras=("peft",) if lora_rank else (),
    )


def memory_of(sizes: Sizes, lora_rank: int, machine: Machine) -> Forecast:
    """The forecast of a run as that of configs/chat_smollm2.yaml, without its reward, on the GPU or the processor."""
    gpu = machine.gpu
    setting = Setting(
        rows=RESPONSES,
        microbatch=16,
        prompt=160,
        response=32,
        responses_per_prompt=4,
        critic="none",
        precision="amp" if gpu and gpu.has_bfloat16 else "fp32",
        lora_rank=lora_rank,
        on_cuda=gpu is not None,
    )
    return forecast(sizes, None, None, setting)


def _sizes(values: dict[str, Any]) -> Sizes:
    from transformers import LlamaConfig

    return sizes_of(LlamaConfig(**values))


def _available(machine: Machine) -> int | None:
    """Bytes where the model computes: free on the GPU, else available on the machine within its control group."""
    return machine.gpu.free if machine.gpu else machine.memory_available


def _rate(machine: Machine) -> float:
    """GFLOP/s of the precision that `precision: auto` takes."""
    gpu = machine.gpu
    if gpu is None:
        return machine.float32
    return gpu.bfloat16 if gpu.has_bfloat16 else gpu.float32


def _ratio(rate: float) -> str:
    return f"{REFERENCE.float32:,.0f} / {rate:,.0f} GFLOP/s"


def _at_least(gpu: Gpu | None) -> str:
    return ", at least: a GPU also waits between products" if gpu else ""
