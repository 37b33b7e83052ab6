"""How fast: programs that measure training beside a peer or a matrix product, and the results of earlier runs (JSON).

- **Ratios, not seconds**, to a peer that runs in turn, or to a matrix product in the same call: seconds from two machines, or
  from two days, do not compare. The real trainer runs, with its checks and its logging.
- Outside of the package, so not in the wheel; `scripts/benchmark.py` starts them from a checkout.
"""
