"""Load on an OpenAI server: the client and its streams."""
