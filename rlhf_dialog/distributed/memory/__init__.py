"""How much memory a run needs and has: the forecast, the sizes it rests on, the allocator.

- **The forecast comes before any weight is read.** `model_bytes` builds each model on the meta device from its
  config.json and counts; `forecast` adds up what each phase holds. A run warns when the total is more than is free.
- **It assumes the longest prompts and responses**, so that most runs stay below it. What it leaves out is listed at
  the top of `forecast`. The tests compare it with the measured memory of small models on a CPU.
- **docs/SCALING.md is written by the same function** (`scripts/write_scaling_docs.py`).
- **`free_memory` knows control groups**: in a container, their limits count and not the machine's memory.
- **`allocator` keeps freed memory for the next tensor** instead of returning it to the kernel, which would clear it
  again. It changes the whole process, so only processes that train or evaluate call it, before the first tensor.
"""
