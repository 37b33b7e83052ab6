"""scripts/benchmark.py: the workload is W's, the arithmetic of its comparisons, and one run of it from end to end."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from processes import HANGING, ROOT, output_of

from rlhf_dialog.commands import benchmark
from rlhf_dialog.commands import benchmark_compare as compare
from rlhf_dialog.commands import benchmark_machine as machine
from rlhf_dialog.commands import benchmark_workload as workload
from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptEncoder, load_prompts
from rlhf_dialog.errors import UserError

SCRIPT = ROOT / "scripts" / "benchmark.py"
FEW = ["--rollout_batch_size=8", "--minibatch=4", "--epochs=1", "--iterations=2", "--max_new_tokens=5", "--device=cpu"]
RATES = {"fp32_gflops": 100.0, "bf16_gflops": 400.0, "copy_gb_per_s": 10.0}


CLASSIFIER = RewardFactory.classes.pop("BenchmarkClassifier")


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """The command's reward is registered in these tests alone."""
    monkeypatch.setitem(RewardFactory.classes, "BenchmarkClassifier", CLASSIFIER)


@pytest.fixture(scope="module")
def tokenizer():
    return workload.made_up_tokenizer(8192)


@pytest.fixture(scope="module")
def small_tokenizer():
    return workload.made_up_tokenizer(512)


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> tuple[dict, Path, str]:
    """A run of the command: its JSON, where that lies, and what was printed."""
    path = tmp_path_factory.mktemp("benchmark") / "out.json"
    printed = output_of(SCRIPT, "--size=test", *FEW, "--set=lr=0.00002", f"--json={path}")
    return json.loads(path.read_text(encoding="utf-8")), path, printed


def result(**changes) -> dict:
    """A result with round numbers, as far as a comparison reads it."""
    work = benchmark.work_of(benchmark.parse(["--size=test", "--device=cpu"]))
    numbers = {"tokens_per_s": 60.0, "seconds_per_iteration": 4.0, "calibration": dict(RATES)}
    phases = {"rollout": 1.0, "reference": None, "update": 2.0}
    return {**work, **numbers, "phases": phases, "classifier_dtype": "fp32", "set": {}, **changes}


def error_of(capsys, *words: str) -> str:
    """The message of a command that ends with exit code 2, without a traceback."""
    assert benchmark.main(list(words)) == 2
    text = capsys.readouterr().err
    assert "Traceback" not in text
    return text


# the workload


@pytest.mark.parametrize(("vocabulary", "mean", "median", "p90"), [(8192, 51.5, 46, 102), (50257, 47.0, 42.5, 91)])
def test_prompts_are_as_long_as_in_w(vocabulary, mean, median, p90):
    lengths = np.minimum(workload.prompt_lengths(vocabulary), 128)
    assert len(lengths) == 512
    assert lengths.mean() == pytest.approx(mean, abs=0.5)
    assert np.median(lengths) == pytest.approx(median, abs=1)
    assert np.percentile(lengths, 90) == pytest.approx(p90, abs=1)
    assert 0.015 < (lengths == 128).mean() < 0.05


def test_made_up_prompts_have_these_lengths(tokenizer):
    items = workload.made_up_items(tokenizer)
    ids = tokenizer([item["prompt"] for item in items])["input_ids"]
    assert [len(row) for row in ids] == workload.prompt_lengths(8192)
    assert items == workload.made_up_items(workload.made_up_tokenizer(8192))
    assert {item["prompt"].count("<EOU>") for item in items} == {1, 2, 3, 4, 5}


def test_the_trainer_reads_the_ids_that_w_has(tokenizer, tmp_path):
    inputs = workload.Inputs("W-synthetic", tokenizer, tokenizer, workload.made_up_items(tokenizer))
    workload.write_files(inputs, workload.SIZES["1m"], "gpt2", tmp_path)
    encoder = PromptEncoder(tokenizer, "<EOU>", 128)
    prompts = load_prompts(str(tmp_path / "prompts.jsonl"), "train")
    ours = [encoder.encode_prompt(prompt.prompt_turns) for prompt in prompts]
    theirs = [tokenizer(i["prompt"], truncation=True, max_length=128)["input_ids"] for i in inputs.items]
    assert ours == theirs == inputs.expected_ids()
    assert max(map(len, ours)) == 128
    assert len(prompts[0].prompt_turns) == inputs.items[0]["prompt"].count("<EOU>")
    assert [prompt.reference for prompt in prompts] == [item["reference"] for item in inputs.items]


@pytest.mark.parametrize(("size", "parameters"), [("small", 5.5e6), ("1m", 1.1e6), ("14m", 14.2e6), ("30m", 30e6)])
def test_the_policies_have_their_sizes(size, parameters):
    with torch.device("meta"):
        for architecture in workload.ARCHITECTURES:
            config = workload.policy_config(workload.SIZES[size], architecture)
            lm = workload.AutoModelForCausalLM.from_config(config)
            assert lm.num_parameters() == pytest.approx(parameters, rel=0.12), architecture
            assert config.vocab_size == lm.get_output_embeddings().weight.shape[0] == 8192


def test_the_reward_is_w_s_own_formula(small_tokenizer, tmp_path):
    small_tokenizer.save_pretrained(tmp_path)
    prompts = [workload.turns_of(item["prompt"], 0) for item in workload.made_up_items(small_tokenizer)[:40]]
    prompts.append([turn for turns in prompts[:8] for turn in turns])
    dialogues = [Dialogue(prompt_turns=turns, response="ba") for turns in prompts]
    texts = [" <EOU> ".join(turns) + " <EOU> ba" for turns in prompts]
    ids = small_tokenizer(texts, truncation=True, max_length=200)["input_ids"]
    longest = max(map(len, ids))
    padded, mask = torch.full((len(ids), longest), 1), torch.zeros((len(ids), longest), dtype=torch.long)
    for i, row in enumerate(ids):
        padded[i, : len(row)], mask[i, : len(row)] = torch.tensor(row), 1
    logits = workload.classifier("test")(input_ids=padded, attention_mask=mask).logits
    wanted = logits.float().softmax(-1)[:, 0].tolist()
    assert longest == 200
    for size in (16, 3):
        reward = workload.BenchmarkClassifier(str(tmp_path), "test", "fp32", size)
        assert reward(dialogues) == pytest.approx(wanted, abs=1e-6)
    rough = workload.BenchmarkClassifier(str(tmp_path), "test", "bf16")(dialogues)
    assert rough == pytest.approx(wanted, abs=1e-2)
    assert rough != pytest.approx(wanted, abs=1e-9)


def test_the_classifier_is_always_the_same_and_leaves_the_random_state_alone():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, second = (workload.classifier("test").state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(torch.get_rng_state(), state)


def test_w_comes_from_the_folder_of_prepare(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setitem(workload.CLASSIFIER_VOCABULARY, "base", 8192)
    items = [{"prompt": "ba <EOU>", "reference": "be"}]
    tokenizer.save_pretrained(tmp_path / "tok8k")
    (tmp_path / "prompts.json").write_text(json.dumps(items), encoding="utf-8")
    inputs = workload.read_inputs(workload.SIZES["small"], tmp_path)
    assert (inputs.workload, inputs.items) == ("W", items)
    assert inputs.tokenizer.get_vocab() == tokenizer.get_vocab()


def test_a_tokenizer_of_another_size_is_not_w_s(small_tokenizer, tmp_path):
    small_tokenizer.save_pretrained(tmp_path / "tok8k")
    (tmp_path / "prompts.json").write_text("[]", encoding="utf-8")
    with pytest.raises(UserError, match="512 tokens, wanted 8192"):
        workload.read_inputs(workload.SIZES["small"], tmp_path)


def test_the_configuration_is_w_s(tmp_path):
    options = benchmark.parse(["--size=small", "--critic=separate", "--dtype=bf16", "--set", "clip_param=0.3"])
    config = workload.run_config(options, tmp_path)
    numbers = (config.rollout_batch_size, config.num_mini_batch, config.ppo_epoch, config.max_new_tokens)
    assert numbers == (64, 4, 5, 20)
    assert (config.lr, config.kl_coef, config.entropy_coef, config.temperature) == (1e-6, 0.05, 0, 1)
    assert (config.use_share_model, config.use_amp, config.clip_param) == (False, True, 0.3)
    parts = config.reward_class.args["parts"]
    assert [(part["id"], part["weight"]) for part in parts] == [("BenchmarkClassifier", 0.5), ("Meteor", 0.5)]


# the command


@pytest.mark.whole_run
def test_a_run_says_everything(measured):
    found, _, printed = measured
    assert (found["workload"], found["size"], found["critic"], found["dtype"]) == (
        "W-synthetic",
        "test",
        "shared",
        "fp32",
    )
    assert [row["tokens"] for row in found["iterations"]] == [8 * 5]  # no response ends early
    assert found["tokens_per_s"] == pytest.approx(40 / found["seconds_per_iteration"])
    phases = found["phases"]
    assert {"generation", "reference", "forward", "backward", "optimizer", "rest"} <= phases.keys()
    assert all(phases[name] > 0 for name in ("rollout", "reward", "update", "reward_classifier"))
    assert found["memory"]["peak_gib"] > found["memory"]["above_imports_gib"] > 0
    assert all(found["calibration"][name] > 0 for name in RATES)
    assert found["update"]["least_gflop"] > 0
    assert {"python", "torch", "transformers", "rlhf_dialog", "commit"} == found["versions"].keys()
    assert {"cpu", "cores", "threads", "memory_gib", "gpu"} <= found["machine"].keys()
    assert len(found["load"]["before"]) == len(found["load"]["after"]) == 3
    assert (found["set"], found["arguments"]["epochs"]) == ({"lr": 2e-5}, "1")
    assert "W-synthetic test gpt2, shared critic, fp32" in printed
    assert "whole iteration" in printed


@pytest.mark.whole_run
def test_other_architectures_and_a_separate_critic_beside_a_baseline(measured, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(machine, "calibrate", lambda device: dict(RATES))
    base = {**measured[0], "architecture": "llama", "critic": "separate"}
    (tmp_path / "base.json").write_text(json.dumps(base), encoding="utf-8")
    words = ["--size=test", *FEW, "--architecture=llama", "--critic=separate", f"--json={tmp_path / 'out.json'}"]
    assert benchmark.main([*words, f"--compare={tmp_path / 'base.json'}"]) == 0
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert found["compare"]["tokens_per_s"] > 0
    assert found["compare"]["phases"]["update"] > 0
    assert "beside the baseline" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--iterations=1"], "--iterations: found 1, wanted at least 2"),
        (["--pairs=0"], "--pairs: found 0"),
        (["--rollout_batch_size=10", "--minibatch=4"], "no whole number of minibatches"),
        (["--w_data=nowhere"], "name the folder that the workload's prepare.py wrote"),
        (["--size=test", "--w_data=nowhere"], "leave --w_data out"),
        (["--set=use_amp=true"], "has an option of its own, --dtype"),
        (["--set=nonsense=1"], "nonsense: unknown key"),
        (["--set=lr=no"], "lr: "),
        (["--compare=nowhere.json"], "--compare nowhere.json: is no result of this script"),
        (["--json=nowhere/out.json"], "cannot be written"),
        (["--device=cuda"], "no CUDA device"),
    ],
)
def test_what_cannot_work_is_said_at_once(words, message, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert message in error_of(capsys, *words)


def test_a_setting_needs_a_value(capsys):
    with pytest.raises(SystemExit) as stopped:
        benchmark.main(["--set", "lr"])
    assert stopped.value.code == 2
    assert "wanted KEY=VALUE" in capsys.readouterr().err


def test_help_tells_how_to_compare(capsys):
    with pytest.raises(SystemExit) as stopped:
        benchmark.main(["--help"])
    assert stopped.value.code == 0
    assert "never compare seconds" in capsys.readouterr().out


# its arithmetic


def test_speed_is_all_tokens_over_all_seconds_after_the_first_iteration():
    laps = [benchmark.Lap(ended, tokens, [], [], 0.0) for ended, tokens in ((5.0, 7), (7.0, 100), (11.0, 80))]
    later = {"time/update": 0.5, "time/generation": 0.8, "objective/kl": 9.0}
    rows = [{"time/rollout": 9.0}, {"time/rollout": 1.0, **later}, {"time/rollout": 2.0, **later, "time/update": 1.5}]
    found = benchmark.speeds(laps, rows)
    assert found["tokens_per_s"] == pytest.approx(180 / 6)
    assert (found["seconds_per_iteration"], found["tokens_per_iteration"]) == (3.0, 90.0)
    assert (found["phases"]["rollout"], found["phases"]["update"], found["phases"]["rest"]) == (1.5, 1.0, 0.5)
    assert (found["phases"]["generation"], found["phases"]["reference"]) == (0.8, None)
    shown = ["rollout", "  generation", "reward", "update", "rest"]
    assert [name for name, _ in benchmark.in_order(found["phases"])] == shown


def test_the_least_work_of_an_update():
    lm = tiny.gpt2()  # 2 layers of width 32, 259 tokens
    config = SimpleNamespace(ppo_epoch=5)
    trainer = SimpleNamespace(models=SimpleNamespace(policy=SimpleNamespace(lm=lm), critic=None), config=config)
    laps = [benchmark.Lap(0.0, 0, [3, 4], [2, 1], 0.0), benchmark.Lap(0.0, 0, [3, 4], [2, 1], 0.0)]
    trunk, attention, head = 2 * (12 * 32 * 32 * 2) * 10, 2 * 2 * 32 * (25 + 25), 2 * 259 * 32 * 3
    assert benchmark.num_weights(lm.base_model) == 12 * 32 * 32 * 2
    assert benchmark.update_gflop(trainer, laps) == pytest.approx(15 * (trunk + attention + head) / 1e9)
    trainer.models.critic = lm
    assert benchmark.update_gflop(trainer, laps) == pytest.approx(15 * (2 * (trunk + attention) + head) / 1e9)
    assert benchmark.update_speed(60.0, 2.0, 120.0) == {"least_gflop": 60.0, "gflops": 30.0, "share_of_matmul": 0.25}


def test_a_comparison_divides_by_the_matrix_product_of_its_own_call():
    now = result(tokens_per_s=100.0, phases={"rollout": 2.0, "reference": 0.5, "update": 1.0})
    now["calibration"] = {**RATES, "fp32_gflops": 200.0}
    found = compare.ratios(now, result())
    assert found["calibration"] == 2.0
    assert found["tokens_per_s"] == pytest.approx((100 / 200) / (60 / 100))
    assert found["phases"] == {"whole iteration": 2.0, "rollout": 4.0, "reference": None, "update": 1.0}
    bf16 = compare.ratios({**now, "dtype": "bf16"}, result(dtype="bf16"))
    assert bf16["phases"]["rollout"] == 2.0  # their bf16 products are equally fast


@pytest.mark.parametrize(
    "changes", [{"workload": "W"}, {"size": "base"}, {"critic": "separate"}, {"dtype": "bf16"}, {"epochs": 4}]
)
def test_other_work_is_not_compared(changes, tmp_path, capsys):
    (tmp_path / "base.json").write_text(json.dumps(result(**changes)), encoding="utf-8")
    message = error_of(capsys, "--size=test", "--device=cpu", f"--compare={tmp_path / 'base.json'}")
    assert "is of other work" in message
    assert f"{next(iter(changes))} {next(iter(changes.values()))!r} there" in message


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"tokens_per_s": 1}', json.dumps(result(tokens_per_s=0))])
def test_a_baseline_that_is_none(text, tmp_path):
    (tmp_path / "base.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="is no result of this script"):
        compare.read_baseline(tmp_path / "base.json", {})


# a peer


def peer(code: str) -> str:
    return f'"{sys.executable}" -c "{code}"'


def test_ours_and_the_peer_run_in_turn(tmp_path, monkeypatch, caplog):
    speeds, log = iter([10.0, 40.0, 20.0]), tmp_path / "log"

    def ours(options):
        log.write_text((log.read_text() if log.exists() else "") + "A", encoding="utf-8")
        return result(tokens_per_s=next(speeds))

    monkeypatch.setattr(compare, "own_run", ours)
    command = f"""printf B >> {log} && echo noise && echo 'SUMMARY {{"tok_s": 5.0}}'"""
    found = compare.in_turn(benchmark.parse(["--size=test", "--pairs=3", f"--vs={command}"]))
    assert log.read_text() == "ABABAB"
    assert [pair["ratio"] for pair in found["vs"]["pairs"]] == [2, 8, 4]
    assert (found["vs"]["median_ratio"], found["tokens_per_s"]) == (4, 20)
    assert "does not run the same prompts" in caplog.text


@pytest.mark.parametrize(
    ("output", "speed"),
    [
        ('x\nSUMMARY {"tok_s": 38.5, "size": "small"}\n', 38.5),
        ('{"tokens_per_s": 3}\nSUMMARY {"tok_s": 4}\nbye', 4),
        ('{\n "tokens_per_s": 7.0\n}\n', 7),
        ('{"tokens_per_s": 0}', None),
        ('{"tokens_per_s": null}', None),
        ("SUMMARY of nothing\n[1]\n", None),
        ("", None),
    ],
)
def test_what_a_peer_says(output, speed):
    assert compare.speed_in(output) == speed


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit('no model here')", "ended with exit code 1; the end of its output:\nno model here"),
        ("print('done')", "printed neither `SUMMARY {json}` with tok_s nor JSON with tokens_per_s"),
    ],
)
def test_a_peer_that_fails(code, message, monkeypatch, capsys):
    monkeypatch.setattr(compare, "own_run", lambda options: result())
    assert message in error_of(capsys, "--size=test", "--device=cpu", f"--vs={peer(code)}")


def test_our_own_run_gets_the_options(monkeypatch):
    def output_of(command):
        given.append(command)
        Path(command[-1].removeprefix("--json=")).write_text(json.dumps(result()), encoding="utf-8")
        return "", 0

    given: list[list[str]] = []
    monkeypatch.setattr(compare, "output_of", output_of)
    words = ["--size=test", "--set", "clip_param=0.3", "--critic=separate", "--vs=x", "--w_data=some where"]
    options = benchmark.parse([*words, "--compare=y", "--json=z"])
    assert compare.own_run(options) == result()
    assert given[0][:3] == [sys.executable, "-m", "rlhf_dialog.commands.benchmark"]
    again = benchmark.parse(given[0][3:])
    dropped = {"vs": None, "compare": None, "json": again.json, "pairs": 5}
    assert vars(again) == {**vars(options), **dropped}


def test_the_commit_is_this_projects_own(monkeypatch):
    """Installed somewhere inside another repository, the package has none."""
    monkeypatch.setattr(machine, "ROOT", machine.ROOT / "tests")
    assert machine.versions()["commit"] is None


def test_our_own_run_that_fails(monkeypatch):
    monkeypatch.setattr(compare, "output_of", lambda command: ("out of memory", -9))
    with pytest.raises(UserError, match=r"our own run ended with exit code -9[^$]*out of memory"):
        compare.own_run(benchmark.parse([]))


def test_an_interrupt_ends_the_peer_and_what_it_started(monkeypatch, tmp_path):
    def interrupted(process):
        wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        raise KeyboardInterrupt

    def wait_until(reached):
        deadline = time.monotonic() + HANGING
        while not reached() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert reached()

    def gone():
        try:
            return stat.read_text().split()[2] in "ZX"
        except OSError:
            return True

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare.output_of(f"sleep 60 & echo $! > {tmp_path / 'pid'}; wait")
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    wait_until(gone)
