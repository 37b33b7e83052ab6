"""Made-up dialogues: the data of the offline quickstart, and the grammar that generates them."""
