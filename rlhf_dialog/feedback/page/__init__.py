"""The page of a bot: which requests pass, the talk, and who answers in it.

- **One thread generates** (`batched_generation`): requests that wait are one batch, and each draws its own random numbers from a
  seed that is stored with the answer, so that who else is in the batch changes no reply.
- **A dialogue keeps its version** (`loaded_versions`): the champion is read when a dialogue begins. A version leaves the memory
  when no dialogue holds it; when the champion does not load, the last good version answers.
- **An answer is shown before it is stored** (`chat_session`), and feedback is confirmed after. A store that is locked or full
  costs nobody the answer: the turns wait in memory, and are stored with the next ones.
- **A person rates what they see** (`chat_session`): their own edit is a preference, not an answer to like. A page sends the state
  that it shows, and a ChatSession compares what it knows with the store, so that two tabs never put two messages at one place.
"""
