"""Load on an OpenAI server: the client, and the decoder of its streams."""
