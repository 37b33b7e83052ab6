"""What a user gets wrong, on the command line of each command: exit code 2, one message with these words, nothing written."""

import json
import os
import shlex
import shutil
import sys

import pytest
import torch
import yaml

from rlhf_dialog.commands.dispatcher import main
from rlhf_dialog.config.registry import RewardFactory
from tests.parts import tiny
from tests.parts.classifiers import save_classifier
from tests.parts.evaluations import save_plain, save_run
from tests.parts.ppo_runs import settings, tree
from tests.parts.scalars import pairs_about_a_word, save_scalar, write_pairs

STAGE = "--output out --max_steps 1 --device cpu --pytorch_threads 1"
SFT, ACTS, RELEVANCE = (
    f"{name} --data_path data {STAGE}" for name in ("train-sft", "train-intent-classifier", "train-relevance-model")
)
PAIRS = f"train-preference-model --model_path lm {STAGE} --data_path"
EVALUATE = "evaluate --agent run/agent --output e.json"
AUDIT = "audit --config ppo.yaml"
SMALL = "--max_prompts 20 --search_prompts 10 --search_replies 100 --search_rounds 4 --search_candidates 20"
PUSH = "push-to-hub --agent run/agent --repo"
SHOW = "--show_prompts 2"
TABLE = [  # command line: words of the message
    # train; ppo.yaml is what it reads, unless another file is named
    ("train", "--config is missing"),
    ("train --config nlp_pppo.yaml", "did you mean 'nlp_ppo.yaml'", "the program ships"),
    ("train --config empty.yaml", "3 problems"),
    ("train --resume always", "--resume: found 'always'"),
    ("train --resume auto --overwrite", "--overwrite", "--resume"),
    ("train --resume", "no checkpoint to resume from"),
    ("train --resume_weights_only", "--resume_weights_only"),
    ("train --show_prompts", "--show_prompts"),
    ("train --show_prompts 0", "--show_prompts: found '0'"),
    (f"train {SHOW} --turn_separator chat_template", "the tokenizer has no chat template"),
    ("train --lrr 1 --gamma 2 --seed x", "3 problems", "lrr", "gamma: found 2", "seed: found 'x'"),
    ("train --lrr 1 --reward_class '{id: Metteor}'", "2 problems", "lrr", "did you mean 'Meteor'"),
    ("train --model_path ./absent", "model_path", "no such folder: './absent'"),
    ("train --model_path nobody/absent", "model_path", "cannot be reached"),
    ("train --ref_model ./absent", "ref_model", "./absent"),
    ("train --env.args.tokenizer_path nobody/absent", "env.args.tokenizer_path", "cannot be reached"),
    ("train --env.args.data_path ./absent", "./absent", "no such file or folder"),
    ("train --env.args.data_path nobody/absent", "nobody/absent", "cannot be reached"),
    ("train --env.args.data_path bad_acts", "dialogues_train.txt, line 3", "7 turns but 9 acts"),
    ("train --reward_class.args.part 1", "CompositeReward", "part"),
    ("train --reward_class.args.parts.0.id Metteor", "parts[0]", "did you mean 'Meteor'"),
    ("train --reward_class.args.parts.0.weight heavy", "parts[0]", "heavy"),
    ("train --reward_class '{id: NLPReward}'", "intent_model"),
    ("train --reward_class '{id: NLPReward, args: {intent_model: ./absent}}'", "intent_model", "./absent"),
    ("train --max_prompt_length 251", "251", "256 positions"),
    ("train --max_new_tokens 200", "256 positions"),
    ("train --min_context_size 40", "min_context_size"),
    ("train --device cuda", "device: cuda", "no CUDA device"),
    ("train --device cuda --disable_cuda true", "disable_cuda"),
    ("train --use_deepspeed true --deepspeed_config absent.json", "deepspeed_config: 'absent.json' not found"),
    ("train --use_deepspeed true --use_fp16 true", "fp16 weights need a GPU"),
    ("train --run_dir ppo.yaml", "run_dir", "cannot be written"),
    ("train oops", "'oops'", "--key value"),
    ("train --register absent.py", "absent.py", "--register"),
    # the supervised stages
    (f"{SFT} --data_path /nowhere/data", "/nowhere/data"),
    (f"{SFT} --model_path /nowhere/model", "model_path", "/nowhere/model"),
    (f"{SFT} --n_embd 30 --n_head 4", "n_embd", "multiple"),
    (f"{SFT} --max_prompt_length 256", "max_prompt_length", "256 positions"),
    (f"{SFT} --data_path broken", "dialogues_act_validation.txt"),
    (f"{ACTS} --hidden_size 30 --num_heads 4", "hidden_size", "multiple"),
    (f"{ACTS} --data_path no_acts", "17 of 17 turns in the train split"),
    (f"{RELEVANCE} --architecture tree", "architecture: found 'tree'"),
    (f"{PAIRS} same.jsonl", "line 2", "'chosen' and 'rejected' are the same"),
    (f"{PAIRS} blank.jsonl", "line 2", "rejected"),
    (f"{PAIRS} columns.jsonl", "no column 'chosen'"),
    (f"{PAIRS} one.jsonl", "2 pairs have 1 prompt"),
    (f"{PAIRS} pairs.jsonl --model_path ./nowhere", "model_path", "no such folder"),
    (f"{PAIRS} pairs.jsonl --trust_remote_code true", "trust_remote_code: unknown key"),
    (f"{PAIRS} pairs.jsonl --model_path scalar", "model_path", "tokenizer"),
    # evaluate
    (f"{EVALUATE} --agent ./absent", "absent"),
    (f"{EVALUATE} --agent lm", "--config", "--data_path"),
    (f"{EVALUATE} --agent lm --data_path no_acts --best_of 2", "--best_of", "no reward"),
    (f"{EVALUATE} --agent lm --data_path pairs.jsonl", "validation split", "--split train"),
    (f"{EVALUATE} --agent begun --config empty.yaml", "empty.yaml", "3 problems"),  # before the agent is loaded
    (f"{EVALUATE} --baseline ./absent", "absent"),
    (f"{EVALUATE} --batch_size 0", "--batch_size: found 0"),
    (f"{EVALUATE} --best_of 0", "--best_of: found 0"),
    (f"{EVALUATE} --min_new_tokens -1", "--min_new_tokens: found -1"),
    (f"{EVALUATE} --min_context_size 50", "min_context_size"),
    (f"{EVALUATE} --device cuda", "CUDA"),
    (f"{EVALUATE} --seed 4294967296", "--seed: found 4294967296"),
    (f"{EVALUATE} --temperature 0", "'temperature': 0"),
    (f"{EVALUATE} --top_k=-1", "'top_k': -1"),
    (f"{EVALUATE} --top_p 1.5", "'top_p': 1.5"),
    (f"{EVALUATE} --data_path ''", "data path ''"),
    (f"{EVALUATE} --output ''", "--output"),
    (f"{EVALUATE} --report .", "--report: '.'"),
    (f"{EVALUATE} --replies e.json", "twice"),
    (f"{EVALUATE} --output pipe", "--output: 'pipe' is not a regular file"),
    (f"{EVALUATE} --replies pipe", "--replies: 'pipe' is not a regular file"),
    (f"{EVALUATE} --max_prompts x", "--max_prompts: invalid int value: 'x'"),
    (f"{EVALUATE} --register exits.py", "--register exits.py", "SystemExit: 1 words"),
    (f"{EVALUATE} --register broken.py", "--register broken.py: ZeroDivisionError: division"),
    (f"{EVALUATE} --relevance_model nowhere", "--relevance_model: 'nowhere'"),
    (f"{EVALUATE} --judge ./nowhere", "--judge", "./nowhere"),
    (f"{EVALUATE} --judge '{{id: Nobody}}'", "--judge", "unknown reward 'Nobody'"),
    (f"{EVALUATE} --judge '{{args: {{}}}}'", "--judge", "{id: Name"),
    (f"{EVALUATE} --judge '{{id: '", "--judge", "not YAML"),
    (f"{EVALUATE} --judge '{{id: CopyPrice, args: {{turns: 0}}}}'", "--judge", "args.turns: 0"),
    (f"{EVALUATE} --judge classifier --judge classifier", "--judge", "two act classifiers"),
    (f"{EVALUATE} --beside a=lm --beside a=run/agent", "--beside", "a=lm, a=run/agent"),
    (f"{EVALUATE} --beside before=lm", "--beside: 'before'"),
    # audit
    (f"{AUDIT} --max_prompts 19", "--max_prompts: found 19", "20"),
    (f"{AUDIT} --search_prompts 9", "--search_prompts: found 9", "10"),
    (f"{AUDIT} --search_replies 99", "--search_replies: found 99", "100"),
    (f"{AUDIT} --search_rounds 3", "--search_rounds: found 3", "4"),
    (f"{AUDIT} --search_candidates 19", "--search_candidates: found 19", "20"),
    (f"{AUDIT} --seed -1", "--seed: found -1"),
    (f"{AUDIT} --device tpu", "--device: found 'tpu'"),
    (f"{AUDIT} --output .", "--output: '.'"),
    (f"{AUDIT} --data_path ''", "data path ''"),
    (f"{AUDIT} --data_path no/such/folder", "'no/such/folder'"),
    (f"{AUDIT} --likelihood no/such/folder", "--likelihood: 'no/such/folder'"),
    (f"{AUDIT} --judge no/such/folder", "--judge", "'no/such/folder'"),
    (f"{AUDIT} --judge '{{id: Nobody}}'", "--judge", "unknown reward 'Nobody'"),
    (f"{AUDIT} --register none.py", "--register none.py"),
    (f"{AUDIT} --reward_class", "unrecognized arguments"),
    ("audit --config unknown.yaml", "Nobody", "--register FILE"),
    (f"audit --config classified.yaml {SMALL} --judge classifier", "--judge", "that the reward has too"),
    (f"audit --config priced.yaml {SMALL} --likelihood lm", "--likelihood", "that the reward has too"),
    (f"audit --config classified.yaml {SMALL} --data_path talks", "have no act", "'intent'"),
    (f"{AUDIT} --data_path prompts", "validation: 30 of 30 prompts"),
    (f"{AUDIT} --data_path bare_train", "train: all prompts"),
    (f"{AUDIT} --data_path few", "validation: has 19 prompts", "20"),
    # chat
    ("chat", "--agent DIR", "no bot"),
    ("chat --agent ./absent", "./absent"),
    ("chat --agent begun", "--agent"),
    ("chat --agent nobody/nothing", "'nobody/nothing'", "no folder here"),
    ("chat --agent lm --device cuda", "no CUDA device"),
    ("chat --agent lm --device foo", "--device: found 'foo'"),
    ("chat --agent lm --seed -1", "--seed: found -1"),
    ("chat --agent lm --temperature=-1", "--temperature -1"),
    ("chat --agent lm --temperature inf", "--temperature inf"),
    # what is published, exported, shown and written
    (f"{PUSH} a//b", "--repo: found 'a//b'"),
    (f"{PUSH} a --output o", "--output", "--dry_run"),
    (f"{PUSH} a", "--repo", "no access token"),
    (f"{PUSH} a --evaluation run/agent/config.json", "--evaluation", "rlhf-dialog evaluate"),
    (f"{PUSH} a --agent nowhere", "--agent", "'nowhere'"),
    (f"{PUSH} a --agent data", "no config.json", "folder agent/"),
    ("export --run nowhere --output o", "--run: 'nowhere'"),
    ("export --run begun --output o", "--run: 'begun' has no checkpoint"),
    ("plot-run --run begun", "metrics.jsonl"),
    ("plot-run --run measured --output pipe", "'pipe' is not a regular file"),
    ("plot-run --run measured --output .", "--output: '.'"),
    ("plot-run --run torn", "metrics.jsonl: line 2"),
    ("report begun", "begun", "no metrics.jsonl"),
    ("report gone", "gone", "no such folder"),
    ("report measured measured", "twice"),
    ("report measured --output .", "--output: '.'"),
    ("report torn", "metrics.jsonl: line 2"),
    ("schema --kind x", "--kind: invalid choice: 'x'"),
    ("push-to-hub --repo a", "required: --agent"),
    ("write-dialogues --output data", "output: 'data'", "not empty"),
    ("write-dialogues --output o --careless 0.1 --pairs 3", "--careless", "--pairs"),
]


def rows(path, *lines):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def write_yaml(path, keys):
    path.write_text(yaml.safe_dump(keys), encoding="utf-8")


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    root = tmp_path_factory.mktemp("house")
    tiny.write_data(root / "data", 12)
    save_plain(root / "lm")
    shutil.copytree(root / "lm", root / "model")
    save_run(root / "run", "data", seed=1)
    save_classifier(root / "classifier")
    save_scalar(root / "scalar", vocab_size=100, pad_token_id=0)
    keys = settings(root) | {"model_path": "lm", "env": {"args": {"data_path": "data"}}}
    for name, reward in {
        "ppo": keys["reward_class"],
        "unknown": {"id": "Nobody"},
        "classified": {"id": "Intent", "args": {"intent_model": "classifier"}},
        "priced": {"id": "LikelihoodPrice", "args": {"model": "lm"}},
    }.items():
        write_yaml(root / f"{name}.yaml", keys | {"reward_class": reward})
    (root / "empty.yaml").touch()
    for name in ("begun", "measured", "torn"):
        (root / name).mkdir()
        write_yaml(root / name / "config.yaml", {})
    rows(root / "measured/metrics.jsonl", {"iteration": 1})
    (root / "torn/metrics.jsonl").write_text('{"iteration": 1}\n{\n{"iteration": 3}\n')
    (root / "exits.py").write_text("import sys\nsys.exit(f'{len(sys.argv)} words')\n")
    (root / "broken.py").write_text("1 / 0\n")
    os.mkfifo(root / "pipe")
    # pairs
    good = {"prompt": "p", "chosen": "a", "rejected": "b"}
    rows(root / "same.jsonl", good, good | {"rejected": "a"})
    rows(root / "blank.jsonl", good, good | {"rejected": ""})
    rows(root / "columns.jsonl", {"prompt": "p", "good": "a", "bad": "b"})
    rows(root / "one.jsonl", good, good)
    write_pairs(root / "pairs.jsonl", pairs_about_a_word(4))
    # data
    for name in ("bad_acts", "broken"):
        shutil.copytree(root / "data", root / name)
    acts = root / "bad_acts/train/dialogues_act_train.txt"
    lines = acts.read_text().splitlines()
    acts.write_text("\n".join([*lines[:2], lines[2] + "1 1", *lines[3:]]) + "\n")
    (root / "broken/validation/dialogues_validation.txt").write_text("one turn __eou__\n")
    for split in tiny.SPLITS:
        rows(root / "no_acts" / f"{split}.jsonl", *({"dialog": turns} for turns, _ in tiny.dialogues(5)))
    prompts, talk = [{"prompt": f"Hi {i} ."} for i in range(30)], [{"dialog": ["Hi .", "Hello ."]}]
    talks = [{"dialog": [f"Hi {i} .", "Hello ."]} for i in range(30)]
    for name, (train, validation) in {
        "prompts": (talk, prompts),
        "bare_train": (prompts, talk * 20),
        "few": (talk, talk * 19),
        "talks": (talks, talks),
    }.items():
        rows(root / name / "train.jsonl", *train)
        rows(root / name / "validation.jsonl", *validation)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0][:70])
def test_a_mistake_is_one_message_and_nothing_is_written(row, house, monkeypatch, capsys):
    monkeypatch.chdir(house)
    monkeypatch.setattr(sys, "argv", ["rlhf-dialog"])  # of which the command changes the first word
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(RewardFactory, "classes", dict(RewardFactory.classes))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(house / "none"))
    words, before = shlex.split(row[0]), tree(house)
    if words[0] == "train" and "--config" not in words and len(words) > 1:
        words += ["--config", "ppo.yaml"]
    try:
        code = main(words)
    except SystemExit as end:  # argparse's
        code = end.code
    said = "".join(capsys.readouterr())
    assert code == 2, said
    assert [word for word in row[1:] if word not in said] == [], said
    assert said.count("error: ") == 1, said
    assert "Traceback" not in said
    assert tree(house) == before
