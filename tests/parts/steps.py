"""One optimizer step of plain SGD, seen in its gradients and in what it moves."""

from torch import Tensor

from rlhf_dialog.training.trainer import PPOTrainer
from tests.parts.trainers import parameters

LR = 0.5


def one_step(trainer: PPOTrainer) -> dict:
    """The gradient and the change of every parameter in one step, and its metrics."""
    gradients, before = {}, {}
    for name, engine in trainer.engines.items():
        before |= {f"{name}.{key}": p for key, p in parameters(engine.module).items()}

        def step(name=name, engine=engine):
            found = engine.module.named_parameters()
            gradients.update({f"{name}.{key}": p.grad.clone() for key, p in found if p.grad is not None})
            engine.optimizer.step()

        engine.step = step
    metrics = trainer.step()
    after = {f"{name}.{key}": p for name, e in trainer.engines.items() for key, p in e.module.named_parameters()}
    moved = {key: (before[key] - after[key].detach()) / LR for key in before}
    return {"gradients": gradients, "moved": moved, "metrics": metrics}


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest norm of a difference as a share of the norm."""
    assert set(found) == set(expected)
    assert all(expected[key].norm() > 0 for key in expected)
    return max(((found[key] - expected[key]).norm() / expected[key].norm()).item() for key in expected)
