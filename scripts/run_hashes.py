"""Short runs and the hashes of what they leave: shows whether a change of the code changed a number of any run.

    python scripts/run_hashes.py --compare       # with run_hashes.json beside this file; exit 1 if anything differs
    python scripts/run_hashes.py --compare FILE --only gae night
    python scripts/run_hashes.py --write [FILE]  # only from a commit whose numbers are known to be right

Everything is started as a user does, in processes of its own, so that modules may move. Numbers depend on the processor and on
the version of torch: hashes of another machine are not compared (exit 2) unless --anyway is given.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
STORED = Path(__file__).with_suffix(".json")
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "fma")
LIMITS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")
LIBRARIES = ("torch", "transformers", "numpy", "peft")
CLOCKS = ("time/", "wait/", "FPS")
CLOCK_WORDS = ("time", "seconds", "versions", "date", "started", "created")  # keys of JSON files that differ by the day
STATE = ("optimizers", "random", "kl_controller", "value_normalizer", "sampler", "scalers", "validation", "time_steps")
Hashes = dict[str, dict[str, str]]  # of each part, of each of its files or columns

MODELS = """
import sys, torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
bytewise = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bytewise.decoder = decoders.ByteLevel()
bytewise.add_special_tokens(["<pad>", "<eos>", AddedToken("<EOU>", lstrip=True, special=True)])
names = {"pad_token": "<pad>", "eos_token": "<eos>"}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytewise, model_max_length=256, **names)
sizes = {"vocab_size": len(tokenizer), "n_positions": 256, "n_embd": 32, "n_layer": 2, "n_head": 2}
ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
for seed in (0, 1):
    torch.manual_seed(seed)
    GPT2LMHeadModel(GPT2Config(**sizes, **ids)).save_pretrained(f"model{seed}")
    tokenizer.save_pretrained(f"model{seed}")
    open(f"model{seed}/rlhf_dialog.json", "w").write('{"format_version": 1, "max_new_tokens": 6}')
"""
STEP_ON = """
import sys
from rlhf_dialog import Dialogue, PPOAgent

agent = PPOAgent.from_config("step_on.yaml")
trainer = agent.build()
prompts = [["Is a table free ?"], ["Good morning .", "Good morning . Can I help you ?"]] * 4
for _ in range(3):
    replies = trainer.responder.reply([Dialogue(turns) for turns in prompts])
    scores = [len(reply.ids) / 10 - index % 2 for index, reply in enumerate(replies)]
    trainer.step_on(prompts, [reply.ids for reply in replies], scores)
agent.save("runs/step_on/ppo_agent")
"""
LANGUAGE_MODEL: dict[str, Any] = {
    "model_path": "model0",
    "run_dir": "runs",
    "rollout_batch_size": 16,
    "num_mini_batch": 2,
    "ppo_epoch": 2,
    "per_device_microbatch_size": 4,
    "max_new_tokens": 10,
    "max_prompt_length": 60,
    "max_iterations": 3,
    "lr": 1e-3,
    "critic_lr": 1e-3,
    "sample_interval": 1,
    "save_interval": 1,
    "device": "cpu",
    "pytorch_threads": 1,
}
PARTS = [{"id": "LengthMatch", "weight": 0.5}, {"id": "Meteor", "weight": 2.0}]
SINGLE_TURN = LANGUAGE_MODEL | {
    "env": {"args": {"data_path": "data"}},
    "reward_class": {"id": "CompositeReward", "args": {"parts": PARTS}},
    "eval_interval": 2,
    "eval_episodes": 8,
}
RESTAURANT = {"id": "restaurant", "args": {"user": "friendly", "max_turns": 3}}
ACTS: dict[str, Any] = {
    "domain": "restaurant",
    "error_rate": 0.15,
    "max_turns": 12,
    "num_envs": 4,
    "run_dir": "runs",
    "eval_interval": 2,
    "eval_dialogues": 10,
}
NIGHT = {
    "learning_rate": 3e-3,
    "warmup_steps": 2,
    "batch_size": 8,
    "checkpoint_steps": 2,
    "sft_data_path": "data",
    "liked_weight": 0,
    "sft_share": 0.2,
    "person_cap": 1.0,
    "min_heldout": 2,
    "max_relative_kl": 10_000,
    "max_worsening": 10**9,
    "min_distinct_2": 0,
    "guard_prompts": 4,
    "device": "cpu",
}
SUPERVISED = {"data_path": "data", "max_steps": 4, "batch_size": 16, "learning_rate": 2e-3, "pytorch_threads": 1}
GUESTS = ("Is a table free ?", "Where is the station ?", "Do you like tea ?", "What does it cost ?", "May I sit here ?")
ANSWERS = ("Yes , of course .", "No no no .", "Why do you ask ?", "It is not far .", "Who told you so ?", "I see .")


@dataclass(frozen=True)
class Run:
    """The commands of a run, in their order, and its settings, which lie beside them as NAME.yaml."""

    commands: tuple[str, ...]
    settings: dict[str, Any]
    ranks: int = 1


def language_model(base: dict[str, Any], **settings: Any) -> Run:
    return Run(("train_ppo.py --config {name}.yaml",), base | settings)


def of_acts(policy: str, batchsz: int, epoch: int, **arguments: Any) -> Run:
    chosen = {"policy": {"id": policy, "args": arguments}, "batchsz": batchsz, "epoch": epoch}
    return Run(("scripts/train_policy.py --config {name}.yaml --transcripts 2",), ACTS | chosen)


def supervised(stage: str, **settings: Any) -> Run:
    return Run((f"-m rlhf_dialog train-{stage} --config {{name}}.yaml --output runs/{{name}}",), SUPERVISED | settings)


RUNS = {
    "gae": language_model(SINGLE_TURN, advantage_estimator="gae", use_share_model=False),
    "rloo": language_model(
        SINGLE_TURN, advantage_estimator="rloo", num_responses_per_prompt=4, use_share_model=True, kl_target=0.1
    ),
    "top_p": language_model(SINGLE_TURN, advantage_estimator="gae", use_share_model=False, top_p=0.9, packing=False),
    "environment": language_model(LANGUAGE_MODEL, environment=RESTAURANT, credit="turn", use_share_model=False),
    "lora": language_model(SINGLE_TURN, use_lora=True, lora_r=4, lora_alpha=8, use_share_model=True),
    "bf16": language_model(SINGLE_TURN, advantage_estimator="gae", use_share_model=False, precision="bf16"),
    "step_on": Run(
        ("-c exec(open('step_on.py').read())",),
        LANGUAGE_MODEL | {"reward_class": {"id": "LengthMatch"}, "env": {"args": {"data_path": "data"}}},
    ),
    "two_ranks": Run(("train_ppo.py --config {name}.yaml",), SINGLE_TURN, ranks=2),
    "ppo": of_acts("ppo", 200, 4, hidden_sizes=[16], minibatch_size=64),
    "gp_sarsa": of_acts("gp_sarsa", 100, 3),
    "dqn": of_acts("dqn", 200, 4),
    **{name: of_acts(name, 100, 3) for name in ("bbqn", "feudal", "a2c", "acer", "enac", "tracer")},
    "night": Run(
        (
            "-m rlhf_dialog feedback init --run {name} --agent model0",
            "-m rlhf_dialog feedback import --run {name} ratings.jsonl",
            "-m rlhf_dialog feedback learn --run {name}",
        ),
        NIGHT,
    ),
    "sft": supervised("sft", n_layer=2, n_embd=32, n_head=2, max_eval_prompts=20, evals=2, dropout=0.1),
    "preference": supervised(
        "preference-model", data_path="pairs.jsonl", model_path="model0", max_length=80, num_samples=8, max_new_tokens=8
    ),
    "relevance": supervised("relevance-model", architecture="convolution", members=2, bank_size=16, hidden_size=32),
    "evaluation": Run(
        (
            "-m rlhf_dialog evaluate --agent model0 --baseline model1 --config {name}.yaml --no_intent --max_prompts 30 "
            "--output {name}/evaluation.json --report {name}/report.md --replies {name}/replies.jsonl",
        ),
        SINGLE_TURN,
    ),
}


def main() -> int:
    options = parsed()
    stored = json.loads(options.compare.read_text(encoding="utf-8")) if options.compare else {}
    if options.compare and (other := other_machine(stored["machine"])) and not options.anyway:
        print(f"not compared: {options.compare} is of another machine ({other}); --anyway compares nevertheless")
        return 2
    began = time.perf_counter()
    found = all_hashes(options.only or list(RUNS), options.jobs)
    if options.write:
        content = (
            json.dumps({"machine": machine(), "runs": others(options.write) | found}, indent=1, sort_keys=True) + "\n"
        )
        options.write.write_text(content, encoding="utf-8")
        print(f"{options.write}: hashes of {len(found)} runs")
    differing = [
        name for name in found if options.compare and not is_same(name, stored["runs"].get(name, {}), found[name])
    ]
    verdict = f", {len(differing)} differ: {' '.join(differing)}" if differing else ", none differs"
    print(f"{len(found)} runs in {time.perf_counter() - began:.0f} s{verdict if options.compare else ''}")
    return 1 if differing else 0


def others(path: Path) -> dict[str, Any]:
    """The hashes that the file has of other runs. Those of another machine end here: one file is of one machine."""
    stored = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"runs": {}, "machine": machine()}
    if other := other_machine(stored["machine"]):
        sys.exit(f"not written: {path} is of another machine ({other}); name another file")
    return dict(stored["runs"])


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", nargs="?", type=Path, const=STORED, metavar="FILE", help="store the hashes")
    what.add_argument("--compare", nargs="?", type=Path, const=STORED, metavar="FILE", help="with stored hashes")
    parser.add_argument("--only", nargs="+", choices=list(RUNS), metavar="NAME", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side (default: 1)")
    parser.add_argument("--anyway", action="store_true", help="compare with hashes of another machine")
    return parser.parse_args()


def machine() -> dict[str, Any]:
    """What the bits of a sum depend on: threads, instructions, libraries."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    known = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = known.get("flags", "").split()
    return {
        "threads": 1,
        "processor": known.get("model name", platform.processor()),
        "flags": [flag for flag in FLAGS if flag in flags],
        "limits": {name: os.environ[name] for name in LIMITS if name in os.environ},
        "libraries": {name: importlib.metadata.version(name) for name in LIBRARIES},
        "python": platform.python_version(),
    }


def other_machine(stored: dict[str, Any]) -> str:
    """What differs from this machine; empty if nothing does. The name of the processor alone is no reason."""
    here = machine() | {"processor": stored["processor"]}
    return ", ".join(f"{key} {stored[key]}, here {here[key]}" for key in here if stored[key] != here[key])


def all_hashes(names: list[str], jobs: int) -> dict[str, Hashes]:
    """Makes the inputs and the runs in a temporary folder, which stays if one of them fails."""
    folder = Path(tempfile.mkdtemp(prefix="run_hashes_"))
    make_inputs(folder)
    with ThreadPoolExecutor(jobs) as pool:
        found = dict(zip(names, pool.map(lambda name: hashes_of_run(name, folder), names), strict=True))
    shutil.rmtree(folder)
    return found


def make_inputs(folder: Path) -> None:
    start(["-c", MODELS], folder)
    (folder / "step_on.py").write_text(STEP_ON, encoding="utf-8")
    start(["-m", "experiments.everyday_dialogues", "--output", "data", "--num_dialogues", "100"], folder)
    write_rows(folder)


def write_rows(folder: Path) -> None:
    """Ratings for a night, and pairs of replies."""
    rows = [
        {"prompt": f"{guest} {number}", "completion": answer, "label": answer.endswith("?")}
        for number in range(3)
        for guest in GUESTS
        for answer in ANSWERS
    ]
    (folder / "ratings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    pairs = [
        {"prompt": f"{guest} {number}", "chosen": chosen, "rejected": rejected}
        for number in range(3)
        for guest in GUESTS
        for chosen, rejected in zip(ANSWERS, ANSWERS[2:], strict=False)
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs), encoding="utf-8")


def hashes_of_run(name: str, folder: Path) -> Hashes:
    """The run of this name in `folder`, and the hashes of what it left; its seconds are printed."""
    run, began = RUNS[name], time.perf_counter()
    text = json.dumps(run.settings)  # JSON is YAML
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    (folder / "evaluation").mkdir(exist_ok=True)
    said = []
    for command in run.commands:
        said.append(start(command.format(name=name).split(), folder, run.ranks))
        if " init " in command:
            (folder / name / "config.yaml").write_text(text, encoding="utf-8")
    left = folder / name if (folder / name).is_dir() else folder / "runs" / name
    found = hashes_of_folder(left)
    found["replies"] = found.get("replies", {}) | replies_in("".join(said))
    print(f"{name:12} {time.perf_counter() - began:4.0f} s", flush=True)
    return {part: files for part, files in found.items() if files}


def start(words: list[str], folder: Path, ranks: int = 1) -> str:
    """What `python` with these words prints, on one rank or several. Ends this program if it fails."""
    script = [str(ROOT / words[0]), *words[1:]] if words[0].endswith(".py") else words
    several = (
        {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} if ranks > 1 else {}
    )
    began = []
    for rank in range(ranks):
        numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
        output = tempfile.TemporaryFile("w+", encoding="utf-8", dir=folder)  # noqa: SIM115
        environment = fixed_environment(folder) | several | numbers
        process = subprocess.Popen(
            [sys.executable, "-P", *script], cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        began.append((process, output))
    return "".join(end(process, output, words) for process, output in began)


def end(process: subprocess.Popen[bytes], output: IO[str], words: list[str]) -> str:
    code = process.wait(timeout=600)
    output.seek(0)
    said = output.read()
    if code:
        sys.exit(f"{said[-3000:]}\npython {' '.join(words)[:200]} ended with exit code {code}")
    return said


def fixed_environment(folder: Path) -> dict[str, str]:
    """The variables of this process, with one thread, a wide terminal, and a home without caches and WordNet."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
    texts = {"COLUMNS": "200", "PYTHONIOENCODING": "utf-8", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    folders = {"HOME": str(folder), "NLTK_DATA": str(folder), "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    return kept | threads | texts | folders


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def hashes_of_folder(folder: Path) -> Hashes:
    """The hashes of the files of a run, by what they hold."""
    found: Hashes = defaultdict(dict)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".safetensors":
            found[part_of(path)][name] = sha256(*tensors(path))
        elif path.name == "metrics.jsonl":
            found["metrics"] |= columns(path)
        elif path.name == "trainer.json":
            content = json.loads(path.read_bytes())
            found["state"] |= {f"{name} {key}": sha256(content[key]) for key in STATE if key in content}
        elif path.name == "policy.json":
            found["state"][name] = sha256(json.loads(path.read_bytes()))
        elif path.name == "replies.jsonl":
            found["replies"][name] = sha256(path.read_text(encoding="utf-8"))
        elif path.name in ("evaluation.json", "report.json", "training.json"):
            found["table"][name] = sha256(timeless(json.loads(path.read_bytes())))
        elif path.name == "report.md":
            found["table"][name] = sha256(path.read_text(encoding="utf-8"))
    return found


def part_of(path: Path) -> str:
    kinds = {"optimizer": "optimizer", "random": "random numbers", "replay": "replay"}
    return next((part for word, part in kinds.items() if word in path.stem), "weights")


def tensors(path: Path) -> Iterator[Any]:
    """Name, type, shape and bytes of each tensor, in the order of the names."""
    content = path.read_bytes()
    start_of_data = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start_of_data])
    for name in sorted(header.keys() - {"__metadata__"}):
        first, last = header[name]["data_offsets"]
        yield [name, header[name]["dtype"], header[name]["shape"]]
        yield content[start_of_data + first : start_of_data + last]


def columns(path: Path) -> dict[str, str]:
    """The hash of each column of metrics.jsonl that is no measured time."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    names = {name for row in rows for name in row if not name.startswith(CLOCKS)}
    return {name: sha256([row.get(name) for row in rows]) for name in sorted(names)}


def replies_in(said: str) -> dict[str, str]:
    """The tables of samples and the dialogues that a command printed, without lines that hold measured times."""
    lines = [
        line.rstrip() for line in said.splitlines() if line.startswith(("│", "| ", "Goal", "goal", "user", "system"))
    ]
    return {"printed": sha256(lines)} if lines else {}


def timeless(content: Any) -> Any:
    """JSON without what is measured in seconds."""
    if isinstance(content, list):
        return [timeless(one) for one in content]
    if not isinstance(content, dict):
        return content
    kept = {key for key in content if not set(CLOCK_WORDS) & set(re.split(r"[/_ ]", key.lower()))}
    return {key: timeless(content[key]) for key in sorted(kept)}


def sha256(*contents: Any) -> str:
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content if isinstance(content, bytes) else json.dumps(content, sort_keys=True).encode())
    return digest.hexdigest()


def is_same(name: str, stored: Hashes, found: Hashes) -> bool:
    """Prints which parts of a run differ, and in which files or columns."""
    for part in sorted(stored.keys() | found.keys()):
        before, after = stored.get(part, {}), found.get(part, {})
        differing = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
        notes = [
            key + (" (new)" if key not in before else " (missing)" if key not in after else "") for key in differing
        ]
        if notes:
            more = f" and {len(notes) - 6} more" if len(notes) > 6 else ""
            print(f"{name}: {part} differ in {len(notes)} of {len(before)}: {', '.join(notes[:6])}{more}")
    return stored == found


if __name__ == "__main__":
    sys.exit(main())
