"""`headrace bench modes`: static batching, continuous batching, and that with chunked prefill, under the same load."""
