"""Dialogue policies that choose acts, and the worlds in which they learn: a product of its own beside the pipeline.

Floors, from below: `domains`, `world`, `policies`, `evaluation`, `runs`, `commands`. It uses the pipeline, which never imports
from here (`wings.py` offers what users name), and knows nothing of `feedback`.
"""
