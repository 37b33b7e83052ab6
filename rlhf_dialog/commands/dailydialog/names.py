"""The names of rows, and at which temperatures they are made."""

TEMPERATURES = (1.0, 0.7)
COUNTS = (2, 4, 8)  # of the best of n
SAID = (
    "true_replies",
    "random_reference",
    "random_train_reply",
    "nearest_train_reply",
    "repeat_last_turn",
    "constant_reply",
    "long_constant_reply",
)
START, BEST_SFT, DPO, BIAS, BEST = "start", "sft_on_best", "dpo", "one_bias", "best_of"
CHOSEN = "chosen.json"
