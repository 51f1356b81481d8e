"""From logits to tokens: sampling parameters, grammars, log-probabilities."""
