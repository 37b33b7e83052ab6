"""The language model: load, pack, generate, answer.

- **The generation loop is ours** (`generation.write_tokens`, with the library's top-k and top-p). It has to store the kept
  tokens of every position, keep the log-probabilities that it computes anyway, and stop row by row at a separator in
  plain text. Each token's random number is drawn before the first token, so a reply depends on no neighbour.
- **The host plans, the GPU computes.** Which token lies where is decided on the host from masks (`token_batch.TokenBatch`), and
  sent in one copy from pinned memory, so that the host runs ahead of the GPU.
- **Masks, never ids.** What counts is decided when a token is sampled and carried as a mask, so a tokenizer whose pad
  is eos trains correctly.
- **A prompt that several responses share is computed once** (`TokenBatch.prompt_groups`), in sampling and in each forward
  pass of reference, update and critic. Models that do not pack compute it each time.
- **Positions are counted over real tokens.** A model that cannot pack gets `position_ids` from the mask.
- **The models are the library's, the attention is ours** (`packing.packed_attention`, from transformers' registry). Without the
  keyword `packing` it is the library's own. No architecture is named anywhere.
- **What a model computes with is in its folder** (`load_report`): a missing weight would be random, so it is an error.
- **A model is tested when it is loaded** (`load_checks`): packed rows must give the predictions of each row alone.
  A model that mixes rows, knows another attention or looks ahead fails, and is padded on the right, or refused.
- **A network of the user's is a causal LM like any other** (`network`; docs/MODELS.md has the contract).
- **Dropout is off by `eval()`**, in every model and for the whole run.
- **The value head** reads the input of the output embedding through a hook, so it works for any causal LM. It starts at zero. A
  separate critic is the same trunk with its own head.
- **`Policy.features` and `Policy.predict` are the seam**: hidden states where the logits are a matrix product of them
  (tried once, `has_plain_head`), else the logits. Logits can then be computed in chunks, and stored states be used again.
- **The outermost autocast of a rollout** converts weights once for all tokens, frozen ones too, and the output embedding once a
  pass (`precision`).
- **oneDNN changes a layer's class** (`cpu_linear`), so that copying, saving, peft and sharding see a linear layer.
  The processor's maker decides, not a timing: a run must compute the same after `--resume`.
- **LoRA** (`lora`): the reference is the policy without its adapter. A separate critic is a second adapter and a head.
  Every linear layer of the trunk gets an adapter, but never the output embedding. `merged_state` merges while it writes `agent/`:
  adding to the model and subtracting again would change bits.
- **A base in 4 bits** (`quantized`) is made by transformers while it loads, and then looks like any other model to the library:
  what reads its weights (fingerprint, merging, the check for NaN) dequantizes one layer at a time.
- **A folder is data** (`pretrained`, docs/SECURITY.md): while transformers loads one, a guard replaces `torch.load`.
"""
