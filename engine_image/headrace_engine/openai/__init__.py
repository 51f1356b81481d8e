"""OpenAI's routes: a body becomes submissions, and their events a response or a stream."""
