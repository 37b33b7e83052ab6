"""The PPO loop, its mathematics, the supervised stages.

- **`ppo` is pure**: tensors in, tensors out. Where a sum runs over all ranks, the caller passes `total`.
- **The KL penalty belongs to the trainer**, not to a reward, so that every reward has it.
- **`kl_estimator` changes the penalty alone.** `objective/kl`, the controller's target and the check of the start are the
  mean log ratio (k1): it is unbiased, and 0 in the sum only when nothing has moved. `whiten_rewards` comes after the
  penalties and before GAE, over all ranks, and leaves the mean as it is, as TRL does (population variance).
- **GAE counts the policy's tokens only.** A mask may have holes, where `episodes` puts the user's turns; the result
  is the same as if these tokens were deleted.
- **REINFORCE++** uses the discounted sum of the token rewards that follow, whitened over the rollout. **GRPO and
  RLOO** use the sum of an episode's token rewards within the group of one prompt. The token rewards carry the KL
  penalty in all of them.
- **Values are normalised once a rollout** (OpenRL: once a minibatch), before the critic learns from that rollout. The
  old values stay in the units in which they were predicted.
- **Every run checks itself** (`checks`): the ratio is 1 on the first minibatch of every iteration, and the KL of a
  fresh run that starts from its reference is 0. Otherwise the run stops with exit code 3.
- **The rounding noise is measured** (`checks.measure_rounding`): in each process of a run once, on its first rollout,
  because it depends on model and device. It is not part of a checkpoint and changes no number.
- **An optimizer step without finite numbers is skipped** (`PPOUpdate.optimizer_step`): the log names the prompts.
  `max_skipped_steps` in a row, also across iterations and a resume, stop the run. NaN in the weights stops it at once.
- **fp16** (`amp_dtype`): one `GradScaler` for each engine scales the losses; its state is in the checkpoint. A step with
  finite losses but other gradients halves the scale. It counts in `ppo/skipped_steps` and `ppo/overflow_steps`, but in
  `max_skipped_steps` only once the scale has reached 1, because then the cause is another one.
- **Episodes are dropped in one place** (`rollout.drop_unscored`): under `on_reward_error: skip` those without a
  score, under an estimator that needs groups the whole group. Their tokens still count in `time_steps`, which counts
  what was generated, so that a run with a failing reward ends too.
- **Nothing is computed twice**: old log-probabilities, entropies and values are those of the sampling. The reference,
  and a separate critic, read each response once. What top-k hides (`objective/kl_full`) comes from stored hidden
  states.
- **The host waits for a GPU once per minibatch**, when it reads the statistics of all microbatches and the gradient norms
  together (`iteration_metrics.read`). Microbatches are planned from the masks on the host (`TokenBatch`).
- **Every rank makes the same microbatches** (`update.minibatch_sizes`). The responses are dealt out to the minibatches one by
  one over all ranks. A rank with fewer rows adds a blank episode, whose loss and gradient are 0. Each rank permutes
  its own rows.
- **The first microbatch of several ranks changes nothing** (`PPOUpdate.warm_up_ddp`): DDP rebuilds its buckets after
  its first backward pass. With three ranks or more another layout rounds differently, and a resumed run would differ.
- **A reply is trained in the context that it saw** (`Segments`): where oldest turns had to leave, a dialogue becomes several
  rows for what reads tokens (critic, reference, update), and stays one row for its rewards and for GAE.
- **Dialogue n of a run has random streams of its own** (`simulated`), for its user and for the policy, so that neither the
  number of dialogues side by side, nor that of ranks, nor a resume changes it.
- **No loss is divided by the length of its dialogue**: the divisor is that of the iteration, so that only the rewards decide
  whether it is better to end early or late.
"""
