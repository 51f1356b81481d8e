"""`headrace bench serve`: load for any OpenAI server, and its latencies, rates and goodput."""
