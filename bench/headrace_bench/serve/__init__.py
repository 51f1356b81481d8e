"""`headrace bench serve`: load for any OpenAI server, and an honest account of what it showed."""
