"""The experiment of OpenRL's documentation on a pretrained chat model: `make dailydialog SIZE=pretrained`.

SmolLM2-135M is fine-tuned on DailyDialog, then trained by PPO: A with the reward of OpenRL's documentation (intent, METEOR,
adaptive KL), B with the learned reward. It is sized for 150 minutes on two cores. Machinery, records and rows are those of the
package above; `stages` has the order.

- **What is here is what differs**: whole dialogues as chat messages (`dialogues`), two rewards (`training`), the published
  columns with margins (`columns`), a test for leaks (`leak`), and a chat (`chat`).
- **`floor`, `leak` and `chat` are programs of their own**, as `rows` is.
"""
