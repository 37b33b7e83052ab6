"""Checkpoints and agents of dialogue policies: files of the policy's own, and what the run must know to go on exactly."""

from pathlib import Path
from typing import Any

from rlhf_dialog.atomic_files import atomic_folder, write_json
from rlhf_dialog.errors import UserError
from rlhf_dialog.found_files import check_files
from rlhf_dialog.json_files import damage_as_user_error, load_json
from rlhf_dialog.runs.checkpoint import read_state
from rlhf_dialog.runs.verification import verify
from rlhf_dialog.task_oriented.domains.loading import OWN
from rlhf_dialog.task_oriented.policies.base import DialoguePolicy
from rlhf_dialog.task_oriented.runs.settings import OF_AGENT, PolicyConfig
from rlhf_dialog.task_oriented.runs.training_world import TrainingWorld

AGENT = "policy_agent.json"
AGENT_FORMAT = 1
DOMAIN = "domain.json"


def load_policy_checkpoint(
    source: Path, policy: DialoguePolicy, identity: dict[str, Any], domain: TrainingWorld
) -> dict[str, Any]:
    """Restore the policy; returns the state. Raises UserError when the checkpoint is damaged, or of another run or domain."""
    _, state = read_state(source.parent, source)
    verify(source, state)
    then: dict[str, Any] = state["identity"]
    check_domain(source, state.get("domain", "?"), then.get("domain_hash"), domain)
    changed = [f"{key}: {then.get(key)!r} -> {value!r}" for key, value in identity.items() if then.get(key) != value]
    if changed:
        raise UserError("\n  ".join([f"{source}: is of another run; its settings differ:", *changed]))
    policy.load(source)
    return state


def save_policy_agent(folder: Path, policy: DialoguePolicy, settings: dict[str, Any], domain: TrainingWorld) -> None:
    """Write the trained policy with what `read_policy_agent` needs to build it again, its domain or list of actions too."""
    with atomic_folder(folder) as target:
        policy.save(target)
        if settings["domain"] not in OWN and (content := domain.as_json()) is not None:
            write_json(target / DOMAIN, content)
        header = {"format_version": AGENT_FORMAT, "domain_name": domain.name, "domain_hash": domain.hash}
        write_json(target / AGENT, header | settings)


def read_policy_agent(folder: Path) -> dict[str, Any]:
    """The settings of an agent; the domain that it keeps is its domain. Raises UserError when the folder holds none,
    or a file of it may not be opened (`found_files`)."""
    check_files(folder)
    path = folder / AGENT
    if not path.is_file():
        raise UserError(f"{folder}: is not the agent of a dialogue policy ({AGENT} is missing); name RUN/agent")
    with damage_as_user_error(f"{path}: is damaged: "):
        written = load_json(path)
        if written["format_version"] != AGENT_FORMAT:
            raise UserError(
                f"{path}: has format version {written['format_version']}; this program reads {AGENT_FORMAT}"
            )
        needed = ("domain", "error_rate", "user", "max_turns", "policy")
        values = {key: written[key] for key in OF_AGENT if key in needed or key in written}
        settings = PolicyConfig(**values).model_dump(include={*values, "environment"})
        settings |= {"domain_hash": written["domain_hash"], "domain_name": str(written.get("domain_name", "?"))}
        if (kept := folder / DOMAIN).is_file():
            domain = settings["domain"]
            settings["domain"] = domain | {"actions": str(kept)} if isinstance(domain, dict) else str(kept)
        return settings


def check_domain(source: Path, name: str, trained_hash: Any, domain: TrainingWorld) -> None:
    """Raises UserError, with both names, when a policy was trained on another domain, of this name and hash."""
    if trained_hash == domain.hash:
        return
    edited = "an earlier state of it" if name == domain.name else f"the domain {name}"
    raise UserError(
        f"{source}: was trained on {edited} (hash {str(trained_hash)[:12]}), but the domain here is {domain.name} (hash "
        f"{domain.hash[:12]}); use the ontology and the entities that it was trained on, or its actions and its state"
    )
