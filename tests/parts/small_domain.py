"""A domain that fits on a page: five cafes, two constraint slots, `tea` with a value of no entity."""

from rlhf_dialog.task_oriented.domains import Domain

DATA = {
    "name": "tea",
    "type": "cafe",
    "constraints": {"tea": ["green", "black", "white"], "area": ["north", "south"]},
    "requestable": ["name", "phone", "hours", "area"],
    "entities": [
        {"name": "ada", "tea": "green", "area": "north", "phone": "11", "hours": "9 to 5"},
        {"name": "ben", "tea": "green", "area": "north", "phone": "22", "hours": "all day"},
        {"name": "cid", "tea": "green", "area": "south", "phone": "33", "hours": "9 to 5"},
        {"name": "dot", "tea": "black", "area": "south", "phone": "44"},
        {"name": "eve", "tea": "black", "area": "south", "phone": "55", "hours": "noon"},
    ],
}


def small_domain() -> Domain:
    return Domain("tea", "cafe", DATA["constraints"], DATA["requestable"], DATA["entities"])
