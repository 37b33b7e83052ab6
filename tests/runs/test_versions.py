"""What a result says of the program that made it."""

from rlhf_dialog.runs import versions


def test_the_commit_is_this_projects_own(monkeypatch):
    """Installed somewhere inside another repository, the package has none."""
    monkeypatch.setattr(versions, "ROOT", versions.ROOT / "tests")
    assert versions.versions()["commit"] is None
