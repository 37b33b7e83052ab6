"""How much memory a run needs and has: the forecast, the model sizes it is computed from, the allocator."""
