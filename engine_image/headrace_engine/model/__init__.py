"""The model: weights from files, its tokenizer and shape, what start-up checks of them."""
