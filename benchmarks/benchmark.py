"""Measure the speed of training: the real trainer, with all its checks and its logging, on workload W or R. See `options`."""

import argparse
import gc
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from benchmarks import chat_workload, compare, machine, products, profile, workload
from benchmarks.options import parse
from benchmarks.versions import versions
from benchmarks.work import Lap, update_gflop, update_speed
from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.commands.command_line import exit_code, exit_on_sigterm, set_up_logging
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.distributed import process_group
from rlhf_dialog.distributed.runtime import keep_freed_memory
from rlhf_dialog.errors import UserError
from rlhf_dialog.runs.agent import PPOAgent
from rlhf_dialog.runs.metrics_file import read_metrics
from rlhf_dialog.runs.services.trackers import Trackers
from rlhf_dialog.terminal import Console
from rlhf_dialog.training.trainer import PPOTrainer

logger = logging.getLogger("rlhf_dialog.benchmark")
WORKLOADS: dict[str, Any] = {"W": workload, "R": chat_workload}
PHASES = ("rollout", "reward", "update")  # in this order; `rest` is the remainder of an iteration
PARTS = {"rollout": ("generation", "reference"), "update": ("forward", "backward", "optimizer")}
OWN = {
    "device": "--device",
    "disable_cuda": "--device",
    "max_iterations": "--iterations",
    "max_new_tokens": "--max_new_tokens",
    "num_mini_batch": "--minibatch",
    "ppo_epoch": "--epochs",
    "rollout_batch_size": "--rollout_batch_size",
    "precision": "--dtype",
    "use_amp": "--dtype",
    "use_share_model": "--critic",
}


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = parse(argv)
    set_up_logging()
    exit_on_sigterm()
    keep_freed_memory()
    with exit_code(options.debug) as ending:
        run(options)
    return ending.code


def run(options: argparse.Namespace) -> None:
    check(options)
    baseline = compare.read_baseline(options.compare, work_of(options)) if options.compare else None
    result = compare.in_turn(options) if options.vs else measure(options)
    if baseline:
        result["compare"] = compare.ratios(result, baseline)
    if options.json:
        replace_json(options.json, result)
    console = Console(width=None if sys.stdout.isatty() else 130, highlight=False)
    console.print(*tables(result))
    for key, tables_of in (("vs", compare.pairs_table), ("compare", compare.ratio_table)):
        if key in result:
            console.print(tables_of(result[key]))


def check(options: argparse.Namespace) -> None:
    """Resolves `auto`. Raises UserError for invalid options."""
    for name, least in {
        "iterations": 2,
        "rollout_batch_size": 1,
        "max_new_tokens": 1,
        "minibatch": 1,
        "epochs": 1,
        "pairs": 1,
    }.items():
        if (value := getattr(options, name)) < least:
            raise UserError(f"--{name}: found {value}, wanted at least {least}")
    if options.rollout_batch_size % options.minibatch:
        raise UserError(
            f"--rollout_batch_size: {options.rollout_batch_size} responses cannot be divided into minibatches of "
            f"{options.minibatch}; change it or --minibatch"
        )
    for key, _ in options.set:
        if key in OWN:
            raise UserError(f"--set {key}: use the option {OWN[key]} instead")
    if options.json and (options.json.is_dir() or not options.json.absolute().parent.is_dir()):
        raise UserError(f"--json: '{options.json}' cannot be written; choose a file in an existing folder")
    if options.profile and not options.profile.is_dir():
        raise UserError(f"--profile: '{options.profile}' is not a folder; choose an existing one")
    if options.size not in (sizes := WORKLOADS[options.workload].SIZES):
        raise UserError(f"--size {options.size}: workload {options.workload} has {', '.join(sizes)}")
    options.device = process_group.pick_device(WORKLOADS[options.workload].run_config(options, Path())).type
    if options.classifier_dtype == "auto":
        fast = machine.has_fast_bf16(torch.device(options.device))
        options.classifier_dtype = "bf16" if fast else "fp32"


def work_of(options: argparse.Namespace) -> dict[str, Any]:
    """The work that was measured: two results are comparable if all of this is equal."""
    names = ("size", "architecture", "critic", "dtype", "device")
    numbers = ("rollout_batch_size", "max_new_tokens", "minibatch", "epochs")
    kind = options.workload if options.w_data or options.model else f"{options.workload}-synthetic"
    work = {"workload": kind} | {name: getattr(options, name) for name in (*names, *numbers)}
    return work | ({"architecture": "llama", "critic": "no"} if options.workload == "R" else {})


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the trainer on the workload; returns all measurements."""
    imported, load, device = machine.peak_gib(), machine.load(), torch.device(options.device)
    with tempfile.TemporaryDirectory(prefix="rlhf_dialog_benchmark_") as name:
        folder = Path(name)
        config = WORKLOADS[options.workload].run_config(options, folder)
        if config.pytorch_threads:
            torch.set_num_threads(config.pytorch_threads)
        before = machine.calibrate(device)
        trainer = TRAINERS[options.workload](options, config, folder)
        laps = train(trainer, Path(config.run_dir).expanduser() / str(config.experiment_name))
        gflop = update_gflop(trainer, laps[1:]) if options.workload == "W" else None
        rows = read_metrics(folder / "run" / "metrics.jsonl")
        memory: dict[str, float | None] = {"peak_gib": laps[-1].peak_gib}
        memory["above_imports_gib"] = laps[-1].peak_gib - imported
        memory["cuda_gib"] = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
        judge = workload.SIZES[options.size].classifier if options.workload == "W" else None
        memory["forecast_gib"] = profile.forecast_gib(config, judge, device)
        least = products_of(trainer, laps[-1].ended - laps[-2].ended) if options.workload == "R" else None
        operations = profile.profiled(trainer, options.profile) if options.profile else None
    del trainer
    gc.collect()
    after = machine.calibrate(device)
    result = work_of(options) | speeds(laps, rows)
    calibration: dict[str, Any] = {key: (before[key] + after[key]) / 2 for key in before}
    calibration |= {"before": before, "after": after}
    return result | {
        "classifier_dtype": options.classifier_dtype,
        "set": dict(options.set),
        "arguments": {name: str(value) for name, value in vars(options).items() if value not in (None, [], False)},
        "memory": memory,
        "profile": operations,
        "calibration": calibration,
        "update": gflop and update_speed(gflop, result["phases"]["update"], calibration[machine.RATES[options.dtype]]),
        "products": least,
        "load": {"before": load, "after": machine.load()},
        "versions": versions(),
        "machine": machine.machine(device),
    }


def products_of(trainer: PPOTrainer, seconds: float) -> dict[str, float]:
    """The matrix products of the newest iteration, and their share of its time."""
    lm = trainer.models.policy.lm
    least = products.seconds_of(products.shapes_of(trainer), lm.device, lm.dtype)
    return {"seconds": least, "share": least / seconds}


def chat_trainer(options: argparse.Namespace, config: Config, folder: Path) -> PPOTrainer:
    """The trainer of R as built by train_ppo.py."""
    chat_workload.write_files(options, folder)
    trainer = PPOAgent(config).build()
    check_device(trainer)
    return trainer


def classified_trainer(options: argparse.Namespace, config: Config, folder: Path) -> PPOTrainer:
    """The trainer of W, with its files in the folder."""
    size = workload.SIZES[options.size]
    inputs = workload.read_inputs(size, options.w_data)
    workload.write_files(inputs, size, options.architecture, folder)
    return build(config, inputs)


TRAINERS = {"W": classified_trainer, "R": chat_trainer}


def build(config: Config, inputs: workload.Inputs) -> PPOTrainer:
    """The trainer as built by train_ppo.py, with separators inside of turns, where nothing ends a response early.

    So all responses of W have one length. Raises UserError when the token ids of a prompt differ from those of W.
    """
    trainer = PPOAgent(config).build()
    check_device(trainer)
    rules = PromptRules.from_keys(config, turn_separator=None)
    trainer.prompts = rules.load(str(config.env.args.data_path), "train")
    trainer.responder.stop.end_ids = [-1]
    trainer.responder.encoder = workload.WholeTexts(
        trainer.models.tokenizer, config.turn_separator, config.max_prompt_length
    )
    encoded = [trainer.responder.encoder.encode_prompt(prompt.prompt_turns) for prompt in trainer.prompts]  # type: ignore[union-attr]
    if encoded != inputs.expected_ids():
        raise UserError(
            "the prompts read by the trainer have other token ids than those of the workload; check --w_data and --set"
        )
    return trainer


def check_device(trainer: PPOTrainer) -> None:
    """Raises RuntimeError when a model of the run is not on the device that is measured."""
    models, wanted = trainer.models, process_group.pick_device(trainer.config).type
    for name, module in {"policy": models.policy, "critic": models.critic, "reference": models.ref_policy}.items():
        if module is not None and (found := next(module.parameters()).device.type) != wanted:
            raise RuntimeError(f"the {name} is on {found}, but the benchmark measures {wanted}")


def train(trainer: PPOTrainer, folder: Path) -> list[Lap]:
    """The training loop of a run with logging, but without checkpoints; one lap per iteration."""
    folder.mkdir(parents=True)
    on_cuda = trainer.models.policy.lm.device.type == "cuda"
    if on_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    trackers, laps = Trackers(trainer.config, folder), []
    try:
        while not trainer.done:
            metrics = trainer.step()
            trackers.log(trainer.iteration, metrics)
            trackers.use("the console", lambda console: console.advance(trainer.progress))
            if on_cuda:
                torch.cuda.synchronize()
            laps.append(lap_of(trainer))
    finally:
        trackers.close()
    return laps


def lap_of(trainer: PPOTrainer) -> Lap:
    rollout, ended = trainer.rollout, time.perf_counter()
    assert rollout is not None
    prompts, responses = (
        mask.sum(dim=1).tolist() for mask in (rollout.tokens.prompt_mask, rollout.tokens.response_mask)
    )
    return Lap(ended, rollout.num_generated, prompts, responses, machine.peak_gib())


def speeds(laps: list[Lap], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Tokens per second, and the time per phase from the metrics: means over the iterations after the first."""
    count = len(laps) - 1
    seconds = [laps[i + 1].ended - laps[i].ended for i in range(count)]
    tokens = [lap.num_tokens for lap in laps[1:]]
    names = dict.fromkeys((*PHASES, *(part for parts in PARTS.values() for part in parts)))
    names |= dict.fromkeys(key.removeprefix("time/") for row in rows[1:] for key in row if key.startswith("time/"))
    phases = {name: _mean([row.get(f"time/{name}") for row in rows[1:]]) for name in names}
    per_iteration = sum(seconds) / count
    phases["rest"] = per_iteration - sum(phases[name] or 0.0 for name in PHASES)
    return {
        "tokens_per_s": sum(tokens) / sum(seconds),
        "seconds_per_iteration": per_iteration,
        "tokens_per_iteration": sum(tokens) / count,
        "iterations": [
            {"seconds": s, "tokens": t, "tokens_per_s": t / s} for s, t in zip(seconds, tokens, strict=True)
        ],
        "phases": phases,
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def tables(result: dict[str, Any]) -> list[str | Table]:
    """The speed, the time per phase, and all other measurements."""
    judge = f" (classifier {result['classifier_dtype']})" if result["update"] else ""
    headline = (
        f"{result['workload']} {result['size']} {result['architecture']}, {result['critic']} critic, {result['dtype']}"
        f"{judge}, {result['device']}: {result['tokens_per_s']:.1f} tokens/s"
    )
    times = Table()
    for name in ("phase", "s per iteration", "share"):
        times.add_column(name, justify="left" if name == "phase" else "right")
    whole = result["seconds_per_iteration"]
    for name, seconds in in_order(result["phases"]):
        shown = "-" if seconds is None else f"{seconds:.3f}"
        times.add_row(name, shown, "-" if seconds is None else f"{seconds / whole:.1%}")
    times.add_row("whole iteration", f"{whole:.3f}", "")
    rest = Table(show_header=False)
    for name, text in details(result).items():
        rest.add_row(name, text)
    return [headline, times, rest]


def in_order(phases: dict[str, float | None]) -> list[tuple[str, float | None]]:
    """The phases, each followed by its parts, then all other times."""
    rows, shown = [], set()
    for phase in (*PHASES, "rest"):
        parts = [*PARTS.get(phase, ()), *(name for name in phases if name.startswith(f"{phase}_"))]
        shown |= {phase, *parts}
        rows += [(phase, phases[phase]), *((f"  {part}", phases[part]) for part in parts if phases[part] is not None)]
    return rows + [(name, seconds) for name, seconds in phases.items() if name not in shown]


def details(result: dict[str, Any]) -> dict[str, str]:
    memory, speed, update = result["memory"], result["calibration"], result["update"]
    cuda = "" if memory["cuda_gib"] is None else f"; on the GPU {memory['cuda_gib']:.2f} GiB"
    cuda += "" if memory["forecast_gib"] is None else f"; forecast {memory['forecast_gib']:.2f} GiB"
    machine, load = result["machine"], result["load"]
    reached = "-"
    if result["products"]:
        least = result["products"]
        reached = (
            f"{least['share']:.0%} of the last iteration would be matrix products alone ({least['seconds']:.1f} s)"
        )
    elif update["gflops"] is not None:
        share = f"{update['share_of_matmul']:.1%} of the {result['dtype']} matrix product"
        reached = f"{update['gflops']:.0f} GFLOP/s of its minimum work, {share}"
    return {
        "peak memory": f"{memory['peak_gib']:.2f} GiB, {memory['above_imports_gib']:.2f} above that after imports{cuda}",
        "ceilings": f"matrix product fp32 {speed['fp32_gflops']:.0f}, bf16 {speed['bf16_gflops']:.0f} GFLOP/s; copy "
        f"{speed['copy_gb_per_s']:.0f} GB/s",
        "products" if result["products"] else "update": reached,
        "load": f"{load['before'][0]} before, {load['after'][0]} after",
        "machine": f"{machine['gpu'] or machine['cpu']}, {machine['torch_threads']} threads of torch, "
        f"{machine['memory_gib']} GiB",
        "versions": ", ".join(f"{name} {version}" for name, version in result["versions"].items()),
    }


if __name__ == "__main__":
    sys.exit(main())
