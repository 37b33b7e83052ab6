"""Processes and devices of a run: ranks, engines, FSDP2, ZeRO, memory.

- **`World` alone speaks to other ranks** (sums, words, errors). With one process it does nothing.
- **`Engine` hides how a gradient is shared.** Each loss is this rank's sum over the tokens of the whole minibatch;
  the engine adds up the ranks. Policy and critic go backward one after the other, so that their exchanges cannot mix.
- **`World.fail_together` makes an error of one rank an error of all; `World.on_main` does so for what rank 0 does
  alone.** Any other end of a process (out of memory, a kill) breaks the connection: the others report it, and the
  process that broke shows its own traceback.
- **Ranks wait for one another through gloo**, for up to an hour; nccl exchanges what all ranks have already, and waits ten
  minutes. A first exchange at the start ends a run whose hosts do not reach each other (`process_group`).
- **Data order is that of one process**, in neighbouring parts. Each rank draws its own random numbers, of its own device;
  rank 0 draws those of a single process. Every rank reads the checkpoint.
- **Three engines with the same methods** (`Engine` alone and under DDP, `FSDPEngine`, `DeepSpeedEngine`); `Placement` makes
  them. accelerate prepares (`accelerator.Preparer`); the engines go backward and make the steps, because accelerate's
  `backward` makes DeepSpeed's step too. A single process without DeepSpeed or FSDP makes no Accelerator.
- **FSDP2 is torch's `fully_shard`** on the layers and on the root. In a rollout and in a validation the weights are gathered
  and stay so (`fsdp_engine.keep_whole`), because ranks with different numbers of tokens would wait for one another for ever.
  Checkpoints are those of one process: whole weights and moments, so any number of processes goes on with them, in any way.
- **Nothing of DeepSpeed is compiled**: torch's AdamW with our keys, also when the optimizer is offloaded. Batch sizes are
  in responses; accumulation boundaries are set for each microbatch.
- **The norm of the gradient is asked for before the step**, with the function that DeepSpeed's step calls, so that
  nothing moves when a number is not finite. An fp16 overflow that lowers the scale is logged, and does not count in
  `max_skipped_steps`.
- **Frozen models** (`frozen_models`): stage 0 has no engine, and the model waits on the CPU with `offload_param`. Stage 3 is
  an engine without an optimizer; the reference follows a policy of stage 3. With LoRA it is the policy.
- **ZeRO-3 in a rollout.** The weights are gathered, and DeepSpeed's hooks are off.
- **Checkpoints under ZeRO** (`zero_checkpoint`): `policy.safetensors` has whole weights, the fp32 masters where there are
  any, `policy_rank0.safetensors` ... the rest. All ranks write into a hidden folder; rank 0 moves the files into the
  checkpoint before that gets its name.
"""
