"""What the machine and the program say of themselves."""

from rlhf_dialog.commands import benchmark_machine as machine


def test_the_commit_is_this_projects_own(monkeypatch):
    """Installed somewhere inside another repository, the package has none."""
    monkeypatch.setattr(machine, "ROOT", machine.ROOT / "tests")
    assert machine.versions()["commit"] is None
