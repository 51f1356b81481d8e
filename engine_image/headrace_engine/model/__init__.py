"""The model: weights from files, its tokenizer and shape, checks at start-up."""
