"""A made-up domain of the size of PyDial's Laptops11: 11 slots to constrain, 20 to ask for, an entity of 600 letters."""

import json
from pathlib import Path
from random import Random

WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "hazel", "indigo", "jasper", "kelp", "lotus")


def write_many_slots(folder: Path) -> Path:
    """The file of the domain."""
    rng = Random(0)
    constraints = {f"{word}size": [f"{rng.choice(WORDS)} {n}" for n in range(4)] for word in WORDS[:11]}
    asked = [f"{word}code" for word in WORDS] + [f"{word}no" for word in WORDS[:8]]
    entities = [
        {"name": f"{rng.choice(WORDS)} {rng.choice(WORDS)} {n}"}
        | {slot: rng.choice(values) for slot, values in constraints.items()}
        | {slot: f"{rng.randrange(10**6, 10**7)}" for slot in asked}
        for n in range(120)
    ]
    path = folder / "machines.json"
    data = {
        "name": "machines",
        "type": "laptop",
        "constraints": constraints,
        "requestable": asked,
        "entities": entities,
    }
    path.write_text(json.dumps(data))
    return path
