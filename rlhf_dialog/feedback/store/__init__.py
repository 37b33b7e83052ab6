"""What is kept: the store of feedback, its schema and formats, the bot's folder, its settings, and the examples in it.

- **The store is append-only** (`store`, `schema`): one SQLite file. Triggers refuse every UPDATE, and every DELETE but
  that of `forget`. Feedback that comes late or changes is a new row, and the newest counts, so that what a night has
  read can be read again. Feedback is acknowledged after it is on disk (WAL with synchronous=FULL).
- **A fifth of the dialogues is held out at birth**, by a hash of the dialogue's random id: no later event moves one.
- **Of a person only a salted hash of a random id is stored.** `forget` removes the rows, and the bytes too
  (secure_delete, VACUUM, an emptied WAL); versions trained on them are marked, with all that were trained from those.
- **A bot is a folder** (`bot`): versions that are written whole, and the pointer `champion`, replaced by one rename.
  After a crash the pointer is authoritative; lineage.json says how it came to be.
"""
