"""Every command and script meets the folder of a stranger in a test, or opens none; docs/SECURITY.md names each.

A command without an entry fails here. An entry is the test that attacks it, with its control in the same file: the same command
with --trust_config, or the folder as one's own YAML, does what the folder asks for.
"""

import re
from pathlib import Path

import pytest

from rlhf_dialog.commands.dispatcher import COMMANDS
from rlhf_dialog.feedback.commands.feedback import SUBCOMMANDS

ROOT = Path(__file__).parents[2]
FOUND = "tests/evaluation/test_untrusted.py"
FOLDERS = "tests/commands/test_found_folders.py"
SERVER = "tests/commands/test_found_server.py"
LINKS = "tests/commands/test_found_files.py"
NETWORKS = "tests/models/test_found_networks.py"
ATTACKED = {
    "train": f"{FOUND}::test_training_with_a_strangers_run_builds_nothing_of_its_config",
    "chat": f"{FOUND}::test_talking_to_a_strangers_agent_builds_nothing_of_its_config",
    "evaluate": f"{FOUND}::test_evaluating_an_agent_asks_no_server_of_its_config",
    "plot-run": f"{FOUND}::test_evaluating_and_plotting_a_strangers_run_builds_nothing_of_its_config",
    "report": "tests/commands/test_report.py::test_a_strangers_run_is_read_as_text",
    "export": "tests/commands/test_export.py::test_a_name_on_the_hub_is_refused_unless_the_configuration_is_trusted",
    "push-to-hub": f"{LINKS}::test_a_command_opens_none_of_the_files_of_a_folder",
    "evaluate-policy": f"{FOLDERS}::test_the_hub_is_not_asked_for_what_a_stranger_names",
    "train-sft": f"{SERVER}::test_nothing_is_asked_shown_or_written_elsewhere",
    "train-preference-model": f"{SERVER}::test_nothing_is_asked_shown_or_written_elsewhere",
    "train-relevance-model": f"{SERVER}::test_nothing_is_asked_shown_or_written_elsewhere",
    "train-intent-classifier": f"{SERVER}::test_nothing_is_asked_shown_or_written_elsewhere",
    "feedback init": f"{LINKS}::test_a_command_opens_none_of_the_files_of_a_folder",
    "feedback learn": f"{FOLDERS}::test_a_bots_own_settings_do_not_ask_the_hub",
    "feedback serve": f"{NETWORKS}::test_a_network_is_not_built_with_a_strangers_arguments",
}
OPENS_NO_FOUND_FOLDER = {
    "benchmark": "makes its models and prompts",
    "quickstart": "reads what it wrote",
    "write-dialogues": "writes alone",
    "schema": "writes alone",
    "doctor": "measures the machine",
    "train-policy": "the user's own YAML; a run that is resumed has the settings of that YAML",
    "audit": "the user's own YAML",
    "feedback status": "reads the store's numbers and texts",
    "feedback rollback": "moves the bot's pointer to a version",
    "feedback forget": "removes rows of the store",
    "feedback export": "writes rows of the store",
    "feedback backup": "copies the store",
    "feedback import": "reads rows of a file by schema",
}
SCRIPTS = {  # script -> the command that it starts, or why it opens no folder of a stranger
    **{f"{name.replace('-', '_')}.py": name for name in COMMANDS},
    "benchmark_gpu.py": "makes its models and prompts",
    "check_quickstart.py": "reads numbers of the quickstart's files",
    "count_iteration.py": "makes its models and prompts",
    "check_wheel.py": "installs the wheel that it built",
    "sick_runs.py": "reads runs that it made",
    "pins.py": "reads the project's own files",
    "run_hashes.py": "reads what its own runs left",
    "site_pages.py": "reads the project's own pages",
    "write_config_docs.py": "writes alone",
    "write_restaurant.py": "writes alone",
}


def commands():
    return [*(name for name in COMMANDS if name != "feedback"), *(f"feedback {name}" for name in SUBCOMMANDS)]


def test_each_command_meets_a_hostile_folder_or_opens_none():
    assert not set(ATTACKED) & set(OPENS_NO_FOUND_FOLDER)
    assert sorted(commands()) == sorted([*ATTACKED, *OPENS_NO_FOUND_FOLDER])


def test_each_script_starts_a_command_or_opens_no_folder():
    assert {path.name for path in (ROOT / "scripts").glob("*.py")} - set(SCRIPTS) == set()


@pytest.mark.parametrize("name", sorted(set(ATTACKED.values())))
def test_the_test_that_is_named_is_there(name):
    path, _, function = name.partition("::")
    assert f"\ndef {function}(" in (ROOT / path).read_text(encoding="utf-8")


def test_the_page_on_security_names_each_command_that_opens_a_folder():
    page = (ROOT / "docs" / "SECURITY.md").read_text(encoding="utf-8")
    table = "\n".join(re.findall(r"^\| .*$", page.split("## A found configuration")[1], re.MULTILINE))
    scripts = {command: name.removesuffix(".py") for name, command in SCRIPTS.items() if command in COMMANDS}
    missing = [name for name in ATTACKED if name not in table and scripts.get(name, "-") not in table]
    assert missing == []
