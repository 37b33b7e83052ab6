"""Processes and devices of a run: ranks, engines, ZeRO, memory."""
