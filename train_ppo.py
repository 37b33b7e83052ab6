"""Train a dialog model with PPO:  python train_ppo.py --config nlp_ppo.yaml [--key value]

Register a reward, a vec-info class or a network of your own here, before main():

    from rlhf_dialog import RewardFactory
    from my_rewards import Politeness
    RewardFactory.register("Politeness", Politeness)
"""

import sys

try:
    from rlhf_dialog import main
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}; first run: source .venv/bin/activate (make quickstart makes it)")

if __name__ == "__main__":
    sys.exit(main())
