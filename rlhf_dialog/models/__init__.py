"""The language model: load, pack, generate, answer.

- **The generation loop is ours** (`generation.write_tokens`, with the library's top-k and top-p). It has to store the kept
  tokens of every position, keep the log-probabilities that it computes anyway, and stop row by row at a separator in
  plain text. Two decoders feed it: `PackedDecoder` with our own keys and values, `PaddedDecoder` with the model's own
  cache.
- **The host plans, the GPU computes.** Which token lies where, and how many there are, is decided on the host from masks
  (`token_batch.TokenBatch`), and sent in one copy from pinned memory (`send_all`). So the host runs
  ahead of the GPU. Masks on the GPU are accepted too, and cost a wait each.
- **Masks, never ids.** What counts is decided when a token is sampled and carried as a mask, so a tokenizer whose pad
  is eos trains correctly. Padding on the right of a response needs no attention mask: nothing looks ahead.
- **A prompt that several responses share is computed once** (`TokenBatch.prompt_groups`), but by models that do not pack.
- **Positions are counted over real tokens.** Packed rows have no padding. A model that cannot pack gets
  `position_ids` from the mask, and must pass a probe when it is loaded: padding on the left must not change its
  predictions.
- **A network of the user's is a causal LM like any other** (`network`; docs/MODELS.md has the contract): a wrapper gives
  a plain module what transformers' models have.
- **Dropout is off by `eval()`**, in every model and for the whole run, so the model's saved configuration does not
  change.
- **The value head** reads the input of the output embedding through a hook, so it works for any causal LM. It starts at
  zero. A separate critic is the same trunk with its own head.
- **The models are the library's, the attention is ours** (`packing.packed_attention`, from transformers' registry).
  Without the keyword `packing` it is the library's own, so other code can use the same model. No architecture is
  named anywhere.
- **A model is tested when it is loaded** (`load_checks`): packed rows must give the predictions of each row alone.
- **`Policy.features` and `Policy.predict` are the seam**: hidden states where the logits are a matrix product of them
  (tried once, `has_plain_head`), else the logits. Logits can then be computed in chunks, and stored states be used
  again.
- **The outermost autocast of a rollout** converts weights once for all tokens, frozen ones too (`precision`). The output
  embedding, the largest matrix, has a copy for each pass, of whole tiles on a GPU (`get_copy`).
- **Each token's random number is drawn before the first token** (`respond`), so neither the rows side by side nor
  dropped rows change what is drawn.
- **oneDNN changes a layer's class** (`cpu_linear`), so that copying, saving, peft and sharding see a linear layer.
  The processor's maker decides, not a timing: a run must compute the same after `--resume`.
- **LoRA** (`lora`): the reference is the policy without its adapter. A separate critic is a second adapter and a head.
  Every linear layer of the trunk gets an adapter, but never the output embedding: the critic has none, and it is often
  tied to the input. `merged_state` merges while it writes `agent/`: adding and subtracting again would change bits.
- **A folder is data** (`pretrained`, docs/SECURITY.md): while transformers loads one, a guard replaces `torch.load`.
- **Activation checkpointing is ours**: the library's works in training mode only, where some models drop out.
"""
