"""A run from its YAML to its folder: begin, resume, checkpoint, save, stop; what accompanies it is in `services`.

- **A checkpoint holds everything**: policy, critic, optimizers, KL controller, value normaliser, the reward's state,
  position in the data, best iteration so far, and the random generators of every rank. `--resume` continues bit for
  bit on the same machine. Tests kill runs at random moments and before every change on the disk, and compare the result.
- **Every write is whole or absent** (`atomic_files`): a folder is filled as `.name.tmp`, synced and renamed. The next run
  in the folder repairs what a kill interrupted (`folder`).
- **A checkpoint is `unannounced` until `latest` names it**: it stores what `latest` said before. After a kill between the
  two, the next run points `latest` at it, unless `latest` has changed. Without `latest`, the last `iter_*` counts.
- **A run that was killed before its first checkpoint starts again at `--resume`**, unless its metrics show more
  iterations than `save_interval`: then checkpoints were removed, and the run is refused.
- **`identity`** is stored with each checkpoint: fingerprints of the starting model, reference, tokenizer, data and
  the reward's models (256 numbers of each parameter, so folders may move), the reward's arguments and parts, and the keys
  that decide what is drawn. `--resume` names every key that differs. Other settings that change numbers (`lr` ...) may
  differ and are logged. A changed code of reward, estimator or loss is refused, unless `allow_changed_reward`.
- **A checkpoint is plain files**; links in place of files are refused. `trainer.json` has size and SHA-256 of every other
  file, and a hash of itself (`verification`), against flipped bits. It is not a signature.
- **What only watches a run does not end it** (`optional_outputs`). A tracker other than metrics.jsonl that raises is dropped
  with one warning, and so are the ledger and the live report. wandb opens before the models are loaded, and closes after
  the agent is saved, since it waits for its upload. One training is one run of wandb: its id is in the run folder.
- **Validation leaves no trace in training**: it seeds the generators and restores them. It precedes the line and the
  checkpoint of its iteration. The best checkpoint, which each later one records, is kept. With `guard.action: stop` the
  checkpoints before the compared validations are kept too.
- **A signal lets the iteration finish** (`interrupts`; SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGQUIT), for `grace_seconds`,
  which a timer enforces. The handler raises KeyboardInterrupt or SystemExit, which no `except Exception` swallows. A
  repeat within half a second is the same signal, because `timeout` sends two. A second signal calls `os._exit`, which
  leaves what a kill leaves; `rlhf-dialog export` makes the agent.
"""
