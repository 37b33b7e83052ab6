"""What decides the stages of short, full and tiny: the hashes of before there were other sizes, of which folders were made."""

import pytest

from experiments.dailydialog import record, training
from experiments.dailydialog import scene as scenes
from experiments.dailydialog.scene import ESTIMATE, Scene
from experiments.dailydialog.stages import NAMES, STAGES
from rlhf_dialog.json_files import as_read_again
from tests.parts import tiny

BEFORE = {  # in the order of the stages
    "short": (
        "297ab5c618e70e71 85bdfa37d0a95c4f 05209fb712243cae d95c2233fdb394bc a54fe02a30e5d37f f5330f3521088da5 1939940ed19bbf5a "
        "4461722c67cdbb9e 0b8117d191e1c8f6 a4600ead35ce3aac 8f874b20f6741318 083d670304fb7f36 dd471337119d8b6e d086ac78ed049f1a"
    ),
    "full": (
        "fc53de73ef1c5c63 46c065021397c782 eeb869f50a7334e1 975ac9e90e224cfa c6a3d009e4146f3b 5991ec16c330ceef bacf9bae16661bc8 "
        "6d6d11a2a5e69e5e 1e2e8eb9fce94ceb 5167f0418ca04ba3 dad1615de7e9f2ac fde6185175214a03 c912352c441c0e46 b30905610e77926c"
    ),
    "tiny": (
        "7db403c5f7fb08fd 9071c00c50e4799f 107ce63b8010d34e 30deb949d4f014d2 7a6782d2d3d8fa3b 16fc5a7f5ea4397a e3e1905cfd74317c "
        "e20175071e07a6ea c30ba962987433fc 5edbce8af6b049c1 ab09c89d8d570d8c f3074b71cc276282 8af619482b5f74d5 6b1b3289e0e08f81"
    ),
}


@pytest.mark.parametrize("size", BEFORE)
def test_no_hash_has_changed(size, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "read_yaml", lambda path: {"file": path.name})  # its keys are other files' business
    monkeypatch.setattr(scenes, "versions", lambda: {"torch": "1"})
    scene, hashes = Scene(tiny.write_data(tmp_path / "data", 4), tmp_path / "work", size, None, print), {}
    scene.plan = {"use_amp": True, "epochs": 2, "tokens": 100_000}
    for stage in STAGES:
        needs = {name: hashes[name] for name in stage.needs if name != ESTIMATE}
        decides = {**scene.common(), "needs": needs, "settings": stage.settings(scene)}
        hashes[stage.name] = record.hash_of(as_read_again(decides))
    assert hashes == dict(zip(NAMES, BEFORE[size].split(), strict=True))
