"""A name or a path -> a checked domain."""

from collections.abc import Collection
from importlib import resources
from pathlib import Path
from typing import Any

from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.json_files import damage_as_user_error, read_json
from rlhf_dialog.task_oriented.domains.domain import DONTCARE, NAME, Domain, check_usable, parse_domain
from rlhf_dialog.task_oriented.domains.multiwoz import read_multiwoz
from rlhf_dialog.task_oriented.domains.pydial import RULES, read_pydial
from rlhf_dialog.task_oriented.domains.services import MultiDomain

OWN = ("restaurant",)
MULTIWOZ = "multiwoz"
DATA_BASE, GOALS = "db/CamRestDB.json", "goal_model.json"  # CamRest676 as ConvLab ships it: entities; slots and values
AnyDomain = Domain | MultiDomain


def open_domain(
    path_or_name: str | Path, data_path: str | Path | None = None, names: Collection[str] | None = None
) -> AnyDomain:
    """`multiwoz` from the folder `data_path`, of it the domains of these `names`, or the single domain that `load_domain` finds.

    Raises UserError as `load_domain` does, and when `data_path` is missing, or it or names are given for another domain.
    """
    if str(path_or_name) != MULTIWOZ:
        if names is not None:
            raise UserError(f"domains: only {MULTIWOZ} has several, found domain '{path_or_name}'; leave it out")
        if data_path is not None:
            raise UserError(
                f"data_path: only the domain {MULTIWOZ} has one, found domain '{path_or_name}'; leave it out"
            )
        return load_domain(path_or_name)
    if data_path is None:
        raise UserError(
            f"domain {MULTIWOZ}: data_path is missing; give the folder with its db/, ontology and goal model"
        )
    domain = read_multiwoz(Path(data_path).expanduser(), _json)
    return domain if names is None else domain.only(names)


def load_domain(path_or_name: str | Path) -> Domain:
    """The domain `restaurant` of the package, or one of the user's: a file or a folder.

    A file is our own JSON, or PyDial's `<Domain>-rules.json`. A folder holds PyDial's two files of one domain, or
    CamRest676. Raises UserError, with the file and the slot, for a domain that cannot be read or used.
    """
    if path_or_name in OWN:
        file = resources.files("rlhf_dialog.task_oriented.domains") / f"{path_or_name}.json"
        domain, where = parse_domain(read_json(file), str(path_or_name)), str(path_or_name)
    else:
        path = Path(path_or_name).expanduser()
        domain, where = _read(path), str(path)
    return check_usable(domain, where)


def check_domain_path(name: str) -> None:
    """Raises UserError when the name is neither a domain of the package nor a path where something is."""
    path = Path(name).expanduser()
    if name not in OWN and not (path.is_file() or path.is_dir()):
        hint = nearest(str(path), OWN) or f"; there is also the domain {' and '.join(OWN)} of the package."
        raise UserError(f"domain '{path}': there is no such file or folder{hint}")


def _read_camrest(entities: Any, goals: Any, folder: Path) -> Domain:
    """The domain of the two parsed files of `folder`. The values are those of the goals and those of the entities."""
    with damage_as_user_error(f"{folder}: is not CamRest676 ({DATA_BASE}, {GOALS}): "):
        wanted = {slot: {*values} - {DONTCARE} for slot, values in goals["ind_slot_value_dist"]["info"].items()}
        requestable = [NAME, *goals["ind_slot_dist"]["reqt"]]
        rows = [{slot: str(entity[slot]) for slot in (*wanted, *requestable) if slot in entity} for entity in entities]
        constraints = {
            slot: sorted({*values, *(row[slot].lower() for row in rows if slot in row)})
            for slot, values in wanted.items()
        }
        return Domain("CamRest676", "restaurant", constraints, requestable, rows)


def _read(path: Path) -> Domain:
    if (path / DATA_BASE).is_file():
        return _read_camrest(_json(path / DATA_BASE), _json(path / GOALS), path)
    if path.is_dir():
        rules = sorted(path.glob(f"*{RULES}"))
        if len(rules) != 1:
            raise UserError(
                f"domain '{path}': expected one file *{RULES} (PyDial) or {DATA_BASE} (CamRest676), found {len(rules)}; "
                "name a file"
            )
        path = rules[0]
    check_domain_path(str(path))
    data = _json(path)
    return read_pydial(data, path) if path.name.endswith(RULES) else parse_domain(data, str(path))


def _json(path: Path) -> Any:
    return read_json(path, f"{path}: cannot be read as JSON: ")
