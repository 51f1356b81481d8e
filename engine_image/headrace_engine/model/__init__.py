"""The model and its memory: weights from files, attention over paged KV blocks, what start-up checks of them."""
