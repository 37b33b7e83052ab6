"""A run from its YAML to its folder: begin, resume, checkpoint, save, stop; what accompanies it is in `services`.

- **A checkpoint holds everything**: policy, critic, optimizers, KL controller, value normaliser, the reward's state,
  position in the data, best iteration so far, and the random generators of every rank. `--resume` continues bit for
  bit on the same machine. The tests kill runs at random moments and before every single change that they make to the
  disk, and compare the metrics and weights of the finished run with those of a run that nobody disturbed.
- **Every write is whole or absent** (`atomic_files`): a folder is filled as `.name.tmp`, synced and renamed. An older
  folder of that name steps aside as `.name.old`. The next run in the folder repairs what a kill interrupted
  (`folder`).
- **A checkpoint is `unannounced` until `latest` names it**: it stores what `latest` said before. If a kill comes
  between the two, the next run points `latest` at it, unless somebody has changed `latest` in the meantime. Without
  `latest`, the last `iter_*` counts: it is whole, because it has its name.
- **A run that was killed before its first checkpoint starts again at `--resume`**, unless its metrics show more
  iterations than `save_interval`. Then somebody has removed checkpoints, and the run is refused rather than
  overwritten.
- **`identity`** is stored with each checkpoint: fingerprints of the starting model, reference, tokenizer, data and
  the reward's models (content, so that folders may move; 256 numbers of each parameter), the reward's arguments and
  parts (`meteor` or `meteor_exact_stem`), and the keys that decide what is drawn. `--resume` refuses another run and
  names every key that differs. Other settings that change numbers (`lr`, `clip_param` ...) may differ and are logged;
  the remaining ones are free. The code of a reward is not compared.
- **`--resume_weights_only RUN` is a new run in its own folder**, so that the old one loses nothing. It saves its
  start as `iter_000000`: a kill before the first checkpoint must not forget where the weights came from. Its KL does
  not start at 0.
- **The lock** is a file with pid, host and start time of the process, under a lock of the kernel. The file informs
  other hosts and people; the kernel's lock is never stale. A run takes it before it changes anything in the folder,
  so a run that is refused writes nothing. On a file system without such locks, a file of another host stays
  until somebody removes it.
- **Every rank writes and reads the run folder at the start** (`shared_disk`), under the lock: without a shared disk the
  first checkpoint would fail, after hours.
- **A checkpoint is plain files**: a pointer that does not name an `iter_NNNNNN`, and links in place of files, are
  refused. `trainer.json` has size and SHA-256 of every other file, and a hash of itself (`verification`), because a
  flipped bit in a weight would otherwise go unnoticed. It is not a signature: who may write the file may write the hash.
- **What only watches a run does not end it** (`optional_outputs`). A tracker other than metrics.jsonl that raises is dropped
  with one warning, and so are the ledger and the live report. wandb opens before the models are loaded, and closes after
  the agent is saved, since it waits for its upload. One training is one run of wandb: its id is in the run folder.
  TensorBoard hides the points that a resumed run writes again.
- **The ledger is written before anything that follows an iteration can raise**, so that a saved iteration has its rows.
  It has no fsync: a kill leaves its rows, a power cut may cost some, which the resume warns of.
- **An error costs as few iterations as possible** (`rescue`). Between two iterations (evaluation, metrics, vec-info)
  the iteration is saved first, if metrics.jsonl has its line. Inside of one, weights and optimizer are half updated, so
  the last checkpoint stays the newest, and a warning says how many iterations are lost.
- **metrics.jsonl is checked line by line**: a line that is not of the next iteration is an error with its number, not
  the end of the file. Only a last line without its end, which a kill leaves, is dropped.
- **Validation leaves no trace in training**: it seeds the generators and restores them, so that runs with and without
  it give the same numbers. It precedes the line and the checkpoint of its iteration. `checkpoints/best` names a
  checkpoint that is never cleaned up. A run that was killed between checkpoint and `best_agent/` writes the agent at
  `--resume`. With `guard.action: stop` the checkpoints before the compared validations are kept too.
- **Two references are scored and measured before any model is loaded**: a wrong `eval_metric` or reward costs
  seconds.
- **`--smoke` is the run itself** with one iteration of two prompts, in a temporary folder on the same disk. It reads
  and checks the whole data set, and refuses what the run would refuse, a folder that holds a run included.
- **A signal lets the iteration finish if it fits** (`interrupts`; SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGQUIT): the
  duration of the last one says whether, and a timer enforces it. The handler raises KeyboardInterrupt or SystemExit,
  which no `except Exception` around a reward swallows. A repeat within half a second is the same signal, because
  `timeout` sends two. A second signal calls `os._exit`, which leaves what a kill leaves. `agent/` is not written then;
  `rlhf-dialog export` makes it.
"""
