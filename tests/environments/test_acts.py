from rlhf_dialog.environments.acts import Act, text_of


def test_acts_are_values():
    assert Act("inform", "tea", "green") == Act("inform", "tea", "green")
    assert len({Act("bye"), Act("bye"), Act("ack")}) == 2


def test_a_turn_in_one_line():
    turn = [Act("hello"), Act("request", "phone"), Act("inform", "tea", "green"), Act("inform", "", "dontcare")]
    assert text_of(turn) == "hello() request(phone) inform(tea=green) inform(=dontcare)"
