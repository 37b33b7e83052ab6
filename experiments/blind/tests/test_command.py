"""The command: the page and its key, the count of two readers, and options that do not fit together."""

import json

from experiments.blind import command as blind


def replies(folder, count=8):
    rows = [
        {"index": i, "prompt": ["Hi ."], "replies": {"after": {"response": f"a {i}"}, "before": {"response": f"b {i}"}}}
        for i in range(count)
    ]
    path = folder / "replies.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_reading_from_the_page_to_the_count(tmp_path, capsys):
    assert blind.main(["--replies", str(replies(tmp_path)), "--pairs", "8", "--output", str(tmp_path / "reading")]) == 0
    assert "readers must not see" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "reading").iterdir()} == {"page.html", "key.json"}
    key = json.loads((tmp_path / "reading/key.json").read_text())
    for reader, num_after in (("Ann", 7), ("Bob", 6)):
        wanted = ["after"] * num_after + ["before"] * (8 - num_after)
        sides = [
            next(s for s in ("left", "right") if pair[s] == one) for one, pair in zip(wanted, key["pairs"], strict=True)
        ]
        path = tmp_path / f"{reader}.json"
        path.write_text(json.dumps({"page": key["page"], "reader": reader, "verdicts": sides}))
    words = ["--key", str(tmp_path / "reading/key.json")]
    words += [word for reader in ("Ann", "Bob") for word in ("--verdicts", str(tmp_path / f"{reader}.json"))]
    assert blind.main(words) == 0
    printed = capsys.readouterr().out
    assert "Ann: after 7, before 1, ties 0; after: 88% of 8 decided [47%, 100%]" in printed
    assert "Ann and Bob agree on 88% of the pairs (kappa 0.60)" in printed
