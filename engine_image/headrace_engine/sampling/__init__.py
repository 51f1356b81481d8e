"""Logits to tokens: what a request asks for, grammars, log probabilities."""
