"""The supervised stages: a policy that answers, a classifier of acts, reward models of preferences and of relevance.

- **What the stages do alike is written once**, in `stage` (`commands.supervised` for the folder and the report).
- **Targets end with the separator. The end-of-text token behind it carries no loss**, unless `learn_eos: true`. With
  prompts of every length the two contradict each other: after `a <EOU> b <EOU>` one example would teach the end of
  text and the next one the following turn, and a model from scratch then answers with an immediate end of text. A
  rollout stops at either token.
- **A prompt that is the beginning of the next one is merged into it** (`sft.merge_prefixes`), so that one sequence
  teaches a whole dialogue; on a CPU this is several times cheaper. With a chat template, roles change from one prompt
  of a dialogue to the next, so prompts seldom merge and training takes longer.
- **Examples are encoded when they are drawn** (`stage.Encoded`): their lengths and a hash alone are in memory. Relevance
  models keep all texts.
- **The chat template is tried when the encoder is made**, before any training.
- **The classifier's inputs are encoded by the reward's own code** (`rewards.intent`): training and use cannot differ.
- **transformers' Trainer and trl's SFTTrainer do the training**; nothing experimental of trl is used. Batches hold
  rows of similar length (`stage.batch_order`), in an order that is fixed before the training.
- **Pairs are encoded by the reward's own code too** (`rewards.scalar_model`) and reach trl's RewardTrainer as ids: joined
  as text they would lose the separators, and trl leaves out long pairs. Only the weights are saved, without trl's
  pickles; `problem_type` of a start with several labels is removed, else the saved model could not be loaded.
- **`token_loss` is the mean over all labelled tokens**, not a mean of batch means.
- **Copies are wrong replies in both directions** (`relevance.pairs`): as replies to the context that they repeat, and as
  contexts in which the reply was just said. The second one is the question that the reward asks. Word vectors alone
  cannot learn it, so the dual encoders also weigh shares of repeated words and word pairs (`models.relevance`).
"""
