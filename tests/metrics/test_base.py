"""A vec-info of one's own."""

from rlhf_dialog import NLPVecInfo, VecInfo, VecInfoFactory


def test_a_vec_info_of_ones_own_registers_like_the_built_in(monkeypatch):
    monkeypatch.setattr(VecInfoFactory, "classes", dict(VecInfoFactory.classes))

    @VecInfoFactory.register("Mine")
    class Mine(VecInfo):
        def __init__(self, scale: float = 2.0):
            self.scale = scale

        def __call__(self, rollout):
            return {"my/number": self.scale}

    assert VecInfoFactory.create("Mine", {"scale": 3.0})(None) == {"my/number": 3.0}
    assert type(VecInfoFactory.create("NLPVecInfo", {})) is NLPVecInfo
    assert VecInfo()(None) == {}
