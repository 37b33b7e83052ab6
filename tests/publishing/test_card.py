"""The model card: what its header and its text say of a run, and what they do not."""

import pytest
from huggingface_hub import ModelCard

from rlhf_dialog.errors import UserError
from rlhf_dialog.publishing.card import CardRun, agent_card

SETTINGS = {"format_version": 1, "turn_separator": "<EOU>", "max_new_tokens": 9}
CONFIG = {
    "model_path": "/home/ada/models/start",
    "experiment_name": "first",
    "lr": 3e-5,
    "gamma": 0.99,
    "run_dir": "/home/ada/runs",
    "wandb_entity": "secret-team",
    "env": {"args": {"data_path": "/home/ada/daily_dialog", "tokenizer_path": None}},
    "reward_class": {
        "id": "CompositeReward",
        "args": {
            "parts": [
                {"id": "Meteor", "args": {"meteor_wordnet": "off"}},
                {
                    "id": "RemoteReward",
                    "weight": 0.25,
                    "args": {"url": "https://u:pw@host.example/s", "token_env": "MY_VARIABLE"},
                },
                {"id": "MyOwn", "args": {"words": "/home/ada/words.txt"}},
            ]
        },
    },
}


def numbers(mean, low=None, high=None) -> dict:
    return {"mean": mean, "low": low, "high": high}


def evaluation() -> dict:
    """`after` has score 0.30; one baseline is better, one is not, and people are."""
    return {
        "before": {"score": numbers(0.2, 0.1, 0.3), "meteor": numbers(None)},
        "after": {"score": numbers(0.3, 0.25, 0.35), "meteor": numbers(None)},
        "difference": {"score": numbers(0.1, -0.01, 0.21), "meteor": numbers(None)},
        "baselines": {
            name: {"score": numbers(mean, mean, mean), "meteor": numbers(None)}
            for name, mean in (("long_constant_reply", 0.31), ("repeat_last_turn", 0.1), ("true_replies", 0.9))
        },
        "settings": {
            "split": "test",
            "num_prompts": 50,
            "baseline": "/home/ada/models/start",
            "data_path": "/home/ada/daily_dialog",
            "notes": ["The judge /home/ada/judge is new."],
        },
    }


def card_of(run: CardRun, tmp_path) -> ModelCard:
    (tmp_path / "README.md").write_text(agent_card("ada/polite", SETTINGS, run, "--agent"), encoding="utf-8")
    return ModelCard.load(tmp_path / "README.md")


def test_the_header_is_read_back_by_the_hubs_own_classes(tmp_path):
    data = card_of(CardRun(CONFIG, evaluation()), tmp_path).data
    assert (data.license, data.language, data.datasets) == ("cc-by-nc-sa-4.0", "en", ["li2017dailydialog/daily_dialog"])
    assert (data.library_name, data.pipeline_tag, data.model_name) == ("transformers", "text-generation", "polite")
    assert data.rlhf_dialog_run == "first"
    (result,) = data.eval_results  # METEOR was not measured
    assert (result.metric_type, result.metric_value, result.dataset_split) == ("score", 0.3, "test")
    assert (result.dataset_type, result.dataset_name) == ("li2017dailydialog/daily_dialog", "DailyDialog")
    baselines = {"long_constant_reply": 0.31, "repeat_last_turn": 0.1, "true_replies": 0.9}
    assert result.metric_args == {"interval_95": [0.25, 0.35], "baselines": baselines}


def test_the_table_and_the_holes_of_the_reward(tmp_path):
    text = card_of(CardRun(CONFIG, evaluation()), tmp_path).text
    assert "| after | 0.300 [0.250, 0.350] | - |" in text
    assert "| long_constant_reply | 0.310 [0.310, 0.310] | - |" in text
    assert "`after` is this model, `before` is `start`." in text
    assert (
        "- `score` is 0.300, which these replies without a model reach or beat: `long_constant_reply` (0.310)." in text
    )
    assert "the 95 % interval of the difference is [-0.010, 0.210]" in text
    assert "no safety filter" in text


def test_the_reward_the_settings_and_the_command(tmp_path):
    text = card_of(CardRun(CONFIG, versions={"torch": "2.9", "rlhf-dialog": "0.1"}), tmp_path).text
    assert "- `Meteor`, weight 1: METEOR in [0, 1]" in text
    assert "- `RemoteReward`, weight 0.25: " in text
    assert "- `MyOwn`, weight 1: a reward of its own (`words: words.txt`)" in text
    assert "\nlr: 3.0e-05\n" in text
    assert "gamma" not in text, "it is the default"
    assert "rlhf-dialog train --config settings.yaml" in text
    assert "rlhf-dialog evaluate --agent ada/polite" in text
    assert "torch 2.9, rlhf-dialog 0.1" in text


def test_no_place_no_address_and_no_account_is_in_it(tmp_path):
    card_of(CardRun(CONFIG, evaluation()), tmp_path)
    text = (tmp_path / "README.md").read_text()
    for hidden in ("/home", "host.example", "pw", "secret-team", "run_dir"):
        assert hidden not in text


def test_text_of_others_makes_no_headings_cells_or_fences(tmp_path):
    text = "x`\n# HEADING\n```\n| cell |"
    reward = {"id": "CompositeReward", "args": {"parts": [{"id": text, "args": {"prompt": text}}]}}
    run = CardRun({**CONFIG, "model_path": text, "turn_separator": text, "reward_class": reward}, evaluation())
    run.evaluation["settings"] |= {"split": text, "baseline": text, "notes": [text]}
    settings = {"turn_separator": "<|im_end|>\n"}
    card = agent_card("ada/polite", settings, run, "--agent")
    body = card.split("\n---\n", 1)[1]
    assert r"| `turn_separator` | `<\|im_end\|>\n` |" in body
    before, fence, after = body.partition("````yaml\n")
    yaml, fence, after = after.partition("\n````\n")
    headings = [line for line in (before + after).splitlines() if line.startswith("# ")]
    assert (headings, fence) == (["# polite"], "\n````\n")
    assert "# HEADING" in yaml


def test_a_network_of_the_users_is_not_called_a_plain_model(tmp_path):
    settings = {**SETTINGS, "model_class": {"id": "GruPolicy", "args": {"vocab_size": 9}}}
    text = agent_card("ada/polite", settings, CardRun(), "--agent")
    assert "AutoModelForCausalLM" not in text
    assert "`rlhf-dialog chat --agent ada/polite --register FILE --trust_config`" in text
    assert "`GruPolicy`" in text


def test_a_starting_model_of_the_hub_is_named_as_such(tmp_path):
    assert (
        card_of(CardRun({**CONFIG, "model_path": "openai-community/gpt2"}), tmp_path).data.base_model
        == "openai-community/gpt2"
    )
    assert "base_model" not in card_of(CardRun(CONFIG), tmp_path).data.to_dict()


def test_names_that_were_places_when_the_run_began_are_none_of_the_hub(tmp_path):
    """Whatever they look like from the folder of the push; those of the evaluation too."""
    config = {**CONFIG, "model_path": "runs/start", "env": {"args": {"data_path": "sets/talks"}}}
    names, measured = frozenset(["runs/start", "sets/talks", "runs/judge"]), evaluation()
    measured["settings"] |= {
        "baseline": "runs/start",
        "data_path": "sets/talks",
        "notes": ["The judge runs/judge is new."],
    }
    card = card_of(CardRun(config, measured, local_names=names), tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "base_model" not in card.data.to_dict()
    assert card.data.datasets is None
    assert card.data.eval_results[0].dataset_type == "talks"
    assert "Trained from `start` (a local model, not published)" in text
    assert "`before` is `start`" in text
    assert "The judge judge is new." in text
    for shown in ("runs/", "sets/", "Hugging Face Hub"):
        assert shown not in text


def test_an_agent_without_a_run_has_a_card_too(tmp_path):
    card = card_of(CardRun(), tmp_path)
    assert card.data.license == "other"
    assert card.data.eval_results is None
    assert "Please fill in" in card.text
    assert "the agent's run has no config.yaml" in card.text


@pytest.mark.parametrize("change", [{"settings": {}}, {"after": {"score": 1}}])
def test_a_damaged_evaluation_is_one_message(change):
    with pytest.raises(UserError, match=r"--agent: config\.yaml or evaluation\.json of the run is damaged"):
        agent_card("ada/polite", SETTINGS, CardRun(CONFIG, {**evaluation(), **change}), "--agent")
