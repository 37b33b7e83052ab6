"""`--register FILE`: what a file of the user's registers, and what is said when it cannot be run."""

import pytest

from rlhf_dialog.commands.registering import register
from rlhf_dialog.config.registry import ModelFactory
from rlhf_dialog.errors import UserError


def test_the_classes_of_a_file(own_networks, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        'import sys\nfrom rlhf_dialog import ModelFactory\nModelFactory.register(f"Mine {len(sys.argv)}", dict)\n'
        'if __name__ == "__main__":\n    raise RuntimeError\n',
        encoding="utf-8",
    )
    register(str(path))
    assert ModelFactory.classes["Mine 1"] is dict


@pytest.mark.parametrize(
    ("code", "message"), [("1 / 0", "ZeroDivisionError: division"), ("raise SystemExit(3)", "SystemExit")]
)
def test_a_file_that_fails(tmp_path, code, message):
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    with pytest.raises(UserError, match=rf"--register .*mine.py: {message}"):
        register(str(tmp_path / "mine.py"))
    with pytest.raises(UserError, match=r"--register absent.py: is not a regular file"):
        register("absent.py")
