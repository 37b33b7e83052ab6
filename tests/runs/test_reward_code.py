"""The user's code behind a reward: which files count, and which of their changes."""

import ast
import functools
import linecache
import sys

import pytest

from rlhf_dialog import BaseReward, CompositeReward, RewardFactory
from rlhf_dialog.commands.options import register
from rlhf_dialog.rewards.function_reward import FunctionReward
from rlhf_dialog.rewards.length import LengthMatch
from rlhf_dialog.runs import reward_code
from rlhf_dialog.runs.reward_code import changed_code, code_of
from tests.parts.processes import load_file

CODE = '''"""Rewards."""
import math

from formulas import SIGN, length
from rlhf_dialog import BaseReward, RewardFactory


@RewardFactory.register("Short")
class Short(BaseReward):
    """A short reply."""

    def __call__(self, dialogues):
        return [SIGN * length(d.response) / 100 for d in dialogues]


class Softer(Short):
    weight = 0.5


def brief(dialogues):
    return [-1.0 for _ in dialogues]


def long(dialogues): return [1.0 for _ in dialogues]
'''
FORMULAS = "SIGN = -1\n\ndef length(text):\n    return len(text)\n"


@pytest.fixture
def code(tmp_path, monkeypatch):
    """`code(text, formulas)`: the user's script my_train.py with this text, and the file that it imports, loaded anew."""
    monkeypatch.setattr(RewardFactory, "classes", dict(RewardFactory.classes))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("my_train", "formulas", "registered"):
        monkeypatch.setitem(sys.modules, name, None)

    def load(text=CODE, formulas=FORMULAS):
        for name, content in (("formulas", formulas), ("my_train", text)):
            (tmp_path / f"{name}.py").write_text(content, encoding="utf-8")
            module = load_file(tmp_path / f"{name}.py", name)
        return module

    load.path = tmp_path / "my_train.py"
    return load


@pytest.mark.parametrize(
    ("text", "formulas", "changed"),
    [
        (CODE.replace("SIGN * ", "-SIGN * "), FORMULAS, ["my_train.py"]),
        (CODE.replace("100", "100.0"), FORMULAS, ["my_train.py"]),
        (CODE, FORMULAS.replace("-1", "1"), ["formulas.py"]),  # a number that it imports
        (CODE, FORMULAS.replace("len(text)", "-len(text)"), ["formulas.py"]),
        (CODE.replace("math", "random"), FORMULAS, ["my_train.py"]),
        (CODE.replace("A short reply.", "Brief."), FORMULAS, []),
        (CODE.replace("[SIGN", "[  # the sign\n            SIGN").replace('"Short"', "'Short'"), FORMULAS, []),
        (f"# a script of mine\n\n{CODE}\n# end\n", FORMULAS + "\n\n", []),
    ],
)
def test_code_of_the_file_and_of_what_it_imports_counts_and_comments_do_not(code, text, formulas, changed):
    before = code_of([code().Short])
    assert set(before) == {"my_train.py", "formulas.py"}
    assert changed_code(code_of([code(text, formulas).Short]), before) == changed


def test_a_registered_file_counts_as_an_imported_one_does(code):
    before = code_of([code().Short])
    register(str(code.path))
    assert RewardFactory.classes["Short"].__module__ == "registered"
    assert code_of([RewardFactory.classes["Short"]]) == before
    code.path.write_text(CODE.replace("import math", "import math\nRewardFactory.register('S', CompositeReward)"))
    assert changed_code(code_of([RewardFactory.classes["Short"]]), before) == ["my_train.py"]
    code.path.write_text(
        "from rlhf_dialog import *\nRewardFactory.register('Sum', type('Sum', (CompositeReward,), {}))\n"
    )
    register(str(code.path))  # its class has no line of its own
    assert set(code_of([RewardFactory.classes["Sum"]])) == {"my_train.py"}


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: functools.partial(one, weight=2)])
def test_a_class_without_methods_a_function_and_its_neighbour_are_told_apart(code, wrap):
    module = code()
    both = {"my_train.py", "formulas.py"}
    assert set(code_of([wrap(module.Softer)])) == both
    assert set(code_of([wrap(module.brief)])) == both | {"brief"}
    assert code_of([wrap(module.brief)]) != code_of([wrap(module.long)])
    assert set(code_of([module.Short, module.Short(), module.brief])) == both | {"brief"}


def test_what_the_package_and_installed_ones_hold_is_no_code_of_the_user(code, tmp_path, monkeypatch):
    assert code_of([LengthMatch, CompositeReward, functools.partial(FunctionReward)]) == {}
    place = tmp_path / "site-packages" / "theirs"
    place.mkdir(parents=True)
    lines = "from rlhf_dialog import BaseReward\n\nclass Theirs(BaseReward):\n    def ask(self):\n        from . import inner\n"
    (place / "__init__.py").write_text(lines)
    (place / "inner.py").write_text("two = 2\n")
    monkeypatch.syspath_prepend(place.parent)
    text = "def later():\n    import theirs.inner\n\n" + CODE
    assert set(code_of([code(text).Short])) == {"my_train.py", "formulas.py"}
    monkeypatch.setitem(sys.modules, "theirs", None)
    theirs = load_file(place / "__init__.py", "theirs").Theirs
    assert set(code_of([theirs])) == {"theirs/__init__.py", "theirs/inner.py"}  # the reward itself is installed


def test_a_cell_of_a_notebook_counts_and_what_has_no_source_is_named(monkeypatch, caplog):
    def typed(text, cell):
        space = {"__name__": "__main__", "BaseReward": BaseReward}
        exec(compile(text, cell, "exec"), space)
        if cell.startswith("<cell"):
            monkeypatch.setitem(linecache.cache, cell, (len(text), None, text.splitlines(keepends=True), cell))
        return space["Typed"]

    text = "class Typed(BaseReward):\n    def __call__(self, dialogues):\n        return [1.0 for _ in dialogues]\n"
    before = code_of([typed(text, "<cell 1>")])
    assert set(before) == {"Typed"}
    assert code_of([typed(text + "# more\n", "<cell 2>")]) == before
    assert changed_code(code_of([typed(text.replace("1.0", "-1.0"), "<cell 3>")]), before) == ["Typed"]
    assert not caplog.records
    assert code_of([typed(text, "<string>")]) == {}
    assert "Typed" in caplog.text


def test_versions_of_python_agree_on_the_essence():
    """Python 3.13 gives `type_params` and other empty fields that 3.11 does not have."""
    tree = ast.parse("def f(x): return u'a' + f'{x}'")
    before = reward_code._essential(tree)
    tree.body[0].type_params, tree.body[0].body[0].value.left.kind = [], None
    assert reward_code._essential(tree) == before
