"""How much memory a run needs and has: the forecast, the sizes it rests on, the allocator."""
