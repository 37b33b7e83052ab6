"""Who was invited: keys that are nowhere but with their owner, names that are nowhere but in people.json."""

import hashlib
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.people import People


@pytest.fixture
def people(tmp_path):
    return People.load(tmp_path)


def records(people):
    return json.loads(people.path.read_text())["people"]


def test_a_key_is_32_random_bytes_and_the_file_has_its_sha256(people):
    before = os.umask(0)
    try:
        keys = [people.invite(name) for name in ("Ann", "Ben")]
    finally:
        os.umask(before)
    assert all(re.fullmatch(r"rd-[0-9A-Za-z_-]{43}", key) for key in keys)  # base64 of 32 bytes
    digests = [hashlib.sha256(key.encode()).hexdigest() for key in keys]
    assert [record["keys"] for record in records(people).values()] == [[digest] for digest in digests]
    assert not any(key in people.path.read_text() for key in keys)
    assert people.path.stat().st_mode & 0o777 == 0o600
    assert [people.find(key).name for key in keys] == ["Ann", "Ben"]


def test_a_new_key_keeps_the_person_and_a_revoked_one_is_nobodys(people):
    assert not people.has_keys()
    first = people.invite("Ann", "teacher")
    ann = people.find(first)
    second = people.invite("Ann")
    assert (ann.role, people.find(first), people.find(second)) == ("teacher", ann, ann)
    assert re.fullmatch("[0-9a-f]{32}", ann.person)
    for wrong in ("", first[:-1], first.upper(), f" {first}", hashlib.sha256(first.encode()).hexdigest(), "\ud83d"):
        assert people.find(wrong) is None
    other = people.invite("Ben")
    assert (people.revoke("Ann"), people.revoke("Ann")) == (2, 0)
    assert [people.find(key) for key in (first, second)] == [None, None]
    assert people.find(other).name == "Ben"
    third = people.invite("Ann", "gateway")
    assert (people.find(third).person, people.find(third).role, people.find(first)) == (ann.person, "gateway", None)
    people.forget("Ann")
    assert (people.find(third), list(records(people))) == (None, ["Ben"])
    assert people.find(people.invite("Ann")).person != ann.person
    for change in (people.revoke, people.forget, people.get):
        with pytest.raises(UserError, match=r"invited as 'Bem'; did you mean 'Ben'\?"):
            change("Bem")


def test_a_program_that_runs_sees_what_others_change_and_opens_for_no_lost_file(people):
    running = People.load(people.path.parent)
    assert (running.has_keys(), running.list()) == (False, [])
    key = people.invite("Ann")
    assert (running.has_keys(), running.find(key).name) == (True, "Ann")
    people.revoke("Ann")
    assert (running.has_keys(), running.find(key)) == (True, None)
    people.forget("Ann")
    assert (running.has_keys(), running.list()) == (True, [])
    assert People.load(people.path.parent).has_keys()  # from the first key on
    people.path.unlink()
    assert (running.has_keys(), running.find(key)) == (True, None)
    people.path.write_text("{")
    for call in (lambda: running.find(key), running.has_keys, lambda: people.invite("Ben")):
        with pytest.raises(UserError, match=r"people.json: is damaged \(.*; put a backup in its place"):
            call()
    assert people.path.read_text() == "{"


def test_two_who_invite_at_once_lose_nothing(people):
    with ThreadPoolExecutor() as threads:
        keys = list(threads.map(lambda number: People.load(people.path.parent).invite(f"p{number}"), range(8)))
    assert sorted(people.find(key).name for key in keys) == [f"p{number}" for number in range(8)]


@pytest.mark.parametrize("name", ["", " Ann", "a" * 61, "a\nb", "\x1b[31m", "\u202eAnn", "0123456789abcdef", "samples"])
def test_names_that_cannot_be_are_refused(people, name):
    with pytest.raises(UserError, match="NAME: found"):
        people.invite(name)
    assert not people.path.exists()


PERSON = {"role": "user", "person": "0a" * 16, "keys": ["9f" * 32], "created": "", "revoked": None}


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"format_version": 2, "people": {}}, "has format version 2, .* versions up to 1; update"),
        *[
            (tree, "is damaged")
            for tree in ([], {"people": {}}, {"format_version": 1}, {"format_version": 1, "people": []})
        ],
        *[
            ({"format_version": 1, "people": {"Ann": {**PERSON, key: value}}}, "is damaged")
            for key, value in [
                ("role", "owner"),
                ("person", "unknown"),
                ("keys", "9f"),
                ("keys", ["9f"]),
                ("keys", [None]),
            ]
        ],
        ({"format_version": 1, "people": {"Ann": {"role": "user"}}}, "is damaged"),
    ],
)
def test_a_file_that_is_damaged_or_newer_is_refused(people, tree, words):
    people.path.write_text(json.dumps({"format_version": 1, "people": {"Ann": PERSON}}))
    assert [one.person for one, _ in people.list()] == ["0a" * 16]
    people.path.write_text(json.dumps(tree))
    with pytest.raises(UserError, match=words):
        people.find("rd-x")


def test_a_code_for_the_page_works_once_and_is_nowhere_else(people):
    key = people.invite("Ann", "teacher")
    codes = [people.invite_to_page(name) for name in ("Ann", "Ann", "Ben")]
    assert all(re.fullmatch("[0-9A-Za-z_-]{43}", code) for code in codes)
    assert not any(code in people.path.read_text() for code in codes)
    ann, other = people.find(key), People.load(people.path.parent)
    assert (ann.role, [people.find(code) for code in codes], people.trade(key)) == ("teacher", [None] * 3, None)
    for wrong in ("", codes[0][:-1], hashlib.sha256(codes[0].encode()).hexdigest(), "\ud83d"):
        assert people.trade(wrong) is None
    assert [other.trade(codes[0]), people.trade(codes[0]), people.trade(codes[1])] == [ann.person, None, ann.person]
    people.revoke("Ben")
    assert people.trade(codes[2]) is None
    assert people.find(key) == ann


def test_many_browsers_with_one_code_are_one_person_once(people):
    code = people.invite_to_page("Ann")
    with ThreadPoolExecutor(8) as pool:
        traded = list(pool.map(lambda _: People.load(people.path.parent).trade(code), range(8)))
    assert sorted(map(bool, traded)) == [False] * 7 + [True]
