"""The experiment of OpenRL's documentation on a pretrained chat model: `make dailydialog SIZE=pretrained`.

SmolLM2-135M is fine-tuned on DailyDialog, then trained by PPO with the reward of OpenRL's documentation (intent, METEOR, KL) in
two ways: by gae, as there, and by rloo with the expectation of the intent match. Calls and rows are those of the package
above; its `command` has the order of the stages.

- **What is here is what differs**: whole dialogues as chat messages (`dialogues`), two ways of PPO (`training`), the published
  columns with margins (`columns`), a test for leaks (`leak`), and a chat (`chat`).
- **`leak` and `chat` are programs of their own**, as `rows` is.
"""
