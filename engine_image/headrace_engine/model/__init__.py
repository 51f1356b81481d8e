"""The model and its memory: weights from files, attention over paged KV blocks, checks at start-up."""
