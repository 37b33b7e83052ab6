"""The commands of a page: benchmark, doctor, plot-run, report, schema, write-dialogues."""

import json
import re
import sys
from argparse import Namespace

import pytest
import torch

from benchmarks import compare
from rlhf_dialog.commands import benchmark, plot_run, report
from rlhf_dialog.commands.doctor import main as doctor
from rlhf_dialog.commands.schema import KINDS
from rlhf_dialog.commands.schema import main as schema
from rlhf_dialog.commands.write_dialogues import main as write_dialogues
from rlhf_dialog.data.synthetic.exchanges import exchange_splits
from rlhf_dialog.distributed import memory
from rlhf_dialog.errors import UserError
from rlhf_dialog.models import device


def test_the_benchmark_runs_in_a_checkout_and_elsewhere_it_says_where_it_is(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit, match="0"):
        benchmark.main(["--help"])
    assert "--workload" in capsys.readouterr().out
    monkeypatch.setattr(benchmark, "CHECKOUT", tmp_path)
    assert benchmark.main(["--workload", "W"]) == 2
    assert "in the checkout of rlhf-dialog (benchmarks/)" in capsys.readouterr().err


GIB = 2**30


@pytest.mark.parametrize(
    ("free", "total", "is_gpu", "words", "absent"),
    [
        (
            *(12 * GIB, 16 * GIB, False),
            [
                "GPU none that torch can use memory 12.0 GiB free of 16.0 GiB disk",
                "configs/chat_smollm2.yaml: fits: it needs 3.8 GiB of memory, of 12.0 GiB free",
                *("Llama 1B with LoRA: fits", "Llama 8B with LoRA: does not fit"),
            ],
            "unknown",
        ),
        (None, None, False, ["memory unknown free of unknown"], "does not fit"),
        (
            # 8.03 billion parameters of 2 bytes are 15 GiB; trained ones take 16 bytes, 120 GiB, and the reference 2
            *(79 * GIB, 80 * GIB, True),
            [
                "GPU Some GPU memory 79.0 GiB free of 80.0 GiB on the GPU",
                *("Llama 8B with LoRA: fits", "Llama 8B, all parameters: does not fit"),
            ],
            "unknown",
        ),
    ],
)
def test_the_doctor_says_what_fits_into_the_memory(monkeypatch, capsys, free, total, is_gpu, words, absent):
    monkeypatch.setattr(memory, "host_memory", lambda: (free, total))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(is_gpu))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "Some GPU")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, total))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(device, "cpu_bfloat16", lambda: "amx" if is_gpu else "")
    assert doctor([]) == 0
    words = [*words, "bfloat16 yes (amx)" if is_gpu else "bfloat16 no"]
    said = " ".join(capsys.readouterr().out.split())
    assert [word for word in words if word not in said] == []
    assert absent not in said


@pytest.mark.slow
def test_the_plot_lies_in_the_run_folder_or_where_it_is_asked_for(tmp_path, capsys):
    row = {"iteration": 1, "objective/score": 0.5, "objective/kl": 0.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert plot_run.main(["--run", str(tmp_path)]) == 0
    assert plot_run.main(["--run", str(tmp_path), "--output", str(tmp_path / "other.png")]) == 0
    assert capsys.readouterr().out.splitlines() == [f"plot: {tmp_path}/{name}.png" for name in ("plot", "other")]
    assert (tmp_path / "plot.png").read_bytes() == (tmp_path / "other.png").read_bytes()


def test_the_line_of_the_target_comes_from_the_runs_configuration(tmp_path, monkeypatch):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"iteration": 1}) + "\n")
    targets = []
    monkeypatch.setattr(
        "rlhf_dialog.evaluation.plot.plot", lambda rows, kl_target, title, output, evaluation: targets.append(kl_target)
    )
    assert plot_run.main(["--run", str(tmp_path)]) == 0
    (tmp_path / "config.yaml").write_text("kl_target: 0.07\n")
    assert plot_run.main(["--run", str(tmp_path)]) == 0
    assert targets == [None, 0.07]


HOSTILE = '</script><img src="http://example.invalid/a.png" onerror="alert(1)">'


def make_run(folder, num_rows=12, **more):
    folder.mkdir()
    rows = [{"iteration": i + 1, "objective/score": i / 10} for i in range(num_rows)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row | more) + "\n" for row in rows))
    return folder


def test_the_page_lies_in_the_run_folder_or_where_it_is_asked_for(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    assert report.main([str(run)]) == 0
    assert report.main([str(run), "--output", str(tmp_path / "new" / "page.html")]) == 0
    head = f"{run}: The curve is right: the reward rises, and all other signs are healthy; nothing to do."
    places = (run / "report.html", tmp_path / "new" / "page.html")
    assert capsys.readouterr().out.splitlines() == [line for path in places for line in (head, f"report: {path}")]
    assert places[0].read_bytes() == places[1].read_bytes()
    assert places[0].read_text().startswith("<!doctype html>")


def test_several_runs_are_on_one_page(tmp_path, capsys):
    runs = [str(make_run(tmp_path / name, num_rows)) for name, num_rows in (("a", 12), ("b", 3))]
    assert report.main(runs) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"{tmp_path}/b: Iterations with a reward: 3 of the 12 that it takes.",
        f"report: {tmp_path}/a/report.html",
    ]
    assert not (tmp_path / "b" / "report.html").exists()


def test_a_strangers_run_is_read_as_text(tmp_path):
    run = make_run(tmp_path / "run", **{HOSTILE: 1.0})
    reward = {"id": "RemoteReward", "args": {"url": "http://example.invalid", "token_env": "HF_TOKEN"}}
    (run / "config.yaml").write_text(json.dumps({"model_path": HOSTILE, "reward_class": reward}))
    row = {"prompt": [HOSTILE], "references": None, "replies": {"after": {"response": HOSTILE}}}
    (run / "replies.jsonl").write_text(json.dumps(row) + "\n")
    assert report.main([str(run)]) == 0
    page = (run / "report.html").read_text()
    assert "<img" not in page
    own = page.replace("\\u003c", "<").replace(HOSTILE.replace('"', '\\"'), "")
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)\S*", own) == []


def printed(capsys, *words):
    assert schema([*words]) == 0
    return json.loads(capsys.readouterr().out)


def test_each_kind_has_its_own_keys_with_their_defaults_and_none_is_required(capsys):
    found = {kind: printed(capsys, "--kind", kind) for kind in KINDS}
    assert found["ppo"] == printed(capsys)
    assert found["ppo"]["properties"]["lr"]["default"] == 1e-6  # as OpenRL's
    assert "required" not in found["ppo"]
    for key, kinds in {
        "kl_coef": ["ppo"],
        "tokenizer_texts": ["sft"],
        "evaluate_test": ["intent", "relevance"],
        "held_out": ["preference"],
        "imitation_dialogues": ["policy"],
    }.items():
        assert [kind for kind in KINDS if key in found[kind]["properties"]] == kinds


@pytest.mark.slow
def test_exchanges_and_pairs(tmp_path, capsys):
    for name, words in (("said", []), ("missed", ["--careless", "0.5"]), ("pairs", ["--pairs", "7"])):
        assert write_dialogues(["--output", str(tmp_path / "new" / name), "--num_dialogues", "40", *words]) == 0
    out = capsys.readouterr().out
    assert out.count("32 train, 4 validation, 4 test") == 2
    assert f"{tmp_path / 'new/pairs/pairs.jsonl'}: 7 pairs" in out
    said, missed = ((tmp_path / "new" / name / "train.jsonl").read_text().splitlines() for name in ("said", "missed"))
    assert len(said) == len(missed) == 32
    assert 5 < sum(a != b for a, b in zip(said, missed, strict=True)) < 27


def test_an_empty_folder_is_filled_and_nothing_is_left_beside_it(tmp_path, capsys):
    (tmp_path / "new/data").mkdir(parents=True)
    assert write_dialogues(["--output", str(tmp_path / "new/data"), "--num_dialogues", "40", "--seed", "3"]) == 0
    lines = (tmp_path / "new/data/test.jsonl").read_text().splitlines()
    assert lines == [one.to_json() for one in exchange_splits(40, 3)["test"]]
    assert "32 train, 4 validation, 4 test" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["data"]


def test_the_peer_of_a_benchmark_runs_first_and_by_the_same_interpreter(tmp_path, monkeypatch):
    options = Namespace(workload="R", w_data=None, pairs=1, vs="exit 3")
    ours = []
    monkeypatch.setattr(compare, "own_run", lambda options: ours.append(options) or {"tokens_per_s": 6.0})
    with pytest.raises(UserError, match=r"--vs: the peer ended with exit code 3"):
        compare.in_turn(options)
    assert ours == []
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    (tmp_path / "peer.py").write_text(f"""import sys\nassert sys.prefix == {sys.prefix!r}\nprint('{{"tok_s": 2}}')\n""")
    options.vs = f"python {tmp_path / 'peer.py'}"
    assert compare.in_turn(options)["vs"]["median_ratio"] == 3
