"""config.yaml of a bot."""

import re

import yaml

from rlhf_dialog.feedback.store.settings import ApiKeys, BotSettings, PageKeys, default_settings, read_settings


def write(folder, text):
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_file_of_a_new_bot_holds_every_key_with_its_default(tmp_path):
    text = default_settings()
    assert read_settings(write(tmp_path, text)) == BotSettings()
    assert list(yaml.safe_load(text)) == list(BotSettings.model_fields)
    lines = text.splitlines()
    keys = [i for i, line in enumerate(lines) if re.match(r"\w+:", line)]
    assert all(lines[i - 1].startswith("# ") for i in keys)


def test_the_defaults_are_those_of_the_documentation():
    limits = {name: getattr(BotSettings(), name) for name in PageKeys.model_fields}
    people = {"messages": (20, 1000), "ratings": (60, 3000), "looks": (60, 5000)}
    wanted = {
        f"page_{kind}_a_{name}": pair[i] for kind, pair in people.items() for i, name in enumerate(("minute", "day"))
    }
    wanted |= {"page_message_chars": 4000, "page_request_bytes": 256 * 1024, "page_times_in_all": 15}
    wanted |= {"page_open_dialogues": 200, "page_person_open_dialogues": 5}
    assert limits == wanted | {"page_person": "browser"}
    in_api = {"messages": (60, 5000), "ratings": (120, 5000), "looks": (120, 20000)}
    wanted = {
        f"api_{kind}_a_{name}": pair[i] for kind, pair in in_api.items() for i, name in enumerate(("minute", "day"))
    }
    wanted |= {"api_request_bytes": 2_000_000, "api_rating_chars": 10_000, "api_streams": 2, "api_streams_in_all": 32}
    assert {name: getattr(BotSettings(), name) for name in ApiKeys.model_fields} == wanted | {"api_times_in_all": 15}
    gate = {"person_cap": 0.2, "min_heldout": 30, "max_relative_kl": 2.0, "min_distinct_2": 0.7, "max_worsening": 2.0}
    night = {"beta": 1.0, "liked_weight": 4.0, "replay_share": 0.5, "epochs": 4.0, "batch_size": 16, "agreement": 0.6}
    night |= {"dpo_weight": 1.0, "sft_share": 0.2, "warmup_steps": 20, "weight_decay": 0.0, "max_grad_norm": 1.0}
    night |= {"checkpoint_steps": 10, "lora_r": 16, "lora_alpha": 32.0, "min_words": 1, "max_words": 200, "steps": None}
    gate |= {"seed": 0, "guard_prompts": 50, "keep_last": 5}
    assert {name: getattr(BotSettings(), name) for name in gate | night} == gate | night


def test_a_night_is_not_compared_by_the_limits_of_page_and_api():
    """Else a night that was killed could not go on after a change of them, and the same feedback would be learned again."""
    assert BotSettings(page_messages_a_day=5, api_streams=1).model_dump() == BotSettings().model_dump()


def test_keys_of_earlier_versions_have_no_effect_and_say_so(tmp_path, caplog):
    caplog.set_level("INFO")
    of_before = "contradiction_confidence: 0.99\npage_wrong_passwords: 10\nppo_kl_coef: 0.1\n"
    path = write(tmp_path, f"{of_before}max_kl: 1\nmax_perplexity_rise: 0.2\nbeta: 0.2\n")
    assert read_settings(path) == BotSettings(beta=0.2)
    keys = ("contradiction_confidence", "page_wrong_passwords", "ppo_kl_coef", "max_kl", "max_perplexity_rise")
    said = [record.getMessage().partition(";")[0] for record in caplog.records]
    assert said == [f"{key}: has no effect here" for key in keys]
