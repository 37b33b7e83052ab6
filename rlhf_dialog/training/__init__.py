"""The PPO loop, its mathematics, the supervised stages.

- **`ppo` is pure**: tensors in, tensors out. Where a sum runs over all ranks, the caller passes `total`.
- **The KL penalty belongs to the trainer**, not to a reward, so that every reward has it. `kl_estimator` changes the penalty
  alone: `objective/kl`, the controller's target and the check of the start are the mean log ratio (k1), which is unbiased.
  `whiten_rewards` comes after the penalties and before GAE, and leaves the mean as it is, as TRL does.
- **GAE counts the policy's tokens only.** A mask may have holes, where `episodes` puts the user's turns; the result
  is the same as if these tokens were deleted.
- **REINFORCE++** uses the discounted sum of the token rewards that follow, whitened over the rollout. **GRPO and RLOO** use the
  sum of an episode's token rewards within the group of one prompt.
- **Values are normalised once a rollout** (OpenRL: once a minibatch), before the critic learns from that rollout. The
  old values stay in the units in which they were predicted.
- **Every run checks itself** (`checks`), within the rounding noise that each process measures on its first rollout.
- **An optimizer step without finite numbers is skipped** (`PPOUpdate.optimizer_step`). `max_skipped_steps` in a row, also
  across iterations and a resume, stop the run. NaN in the weights stops it at once.
- **fp16** (`amp_dtype`): one `GradScaler` for each engine, whose state is in the checkpoint. A step with finite losses but other
  gradients halves the scale. It counts in `max_skipped_steps` only once the scale has reached 1.
- **Episodes are dropped in one place** (`rollout.drop_unscored`). Their tokens still count in `time_steps`, so that a run with
  a failing reward ends too.
- **Nothing is computed twice**: old log-probabilities, entropies and values are those of the sampling. What top-k hides
  (`objective/kl_full`) comes from stored hidden states. Of an engine's or the caller's responses, `reading` computes them once,
  after all rounds of a dialogue.
- **Where an engine samples, it is the behaviour policy**: `ppo.engine_weights` and `objective/gain` divide by its probabilities.
  The check of the first ratios compares two readings of ours, and says nothing of the engine; `checks.check_engine` does.
- **The host waits for a GPU once per minibatch**, when it reads the statistics of all microbatches and the gradient norms
  together (`iteration_metrics.read`).
- **Every rank makes the same microbatches** (`update.minibatch_sizes`). A rank with fewer rows adds a blank episode, whose loss
  and gradient are 0. Each rank permutes its own rows.
- **A reply is trained in the context that it saw** (`multi_turn.Segments`): where oldest turns had to leave, a dialogue becomes
  several rows for what reads tokens, and stays one row for its rewards and for GAE.
- **Dialogue n of a run has random streams of its own** (`simulated`), so that neither the number of dialogues side by side, nor
  that of ranks, nor a resume changes it.
- **No loss is divided by the length of its dialogue**: the divisor is that of the iteration, so that only the rewards decide
  whether it is better to end early or late.
"""
