"""Model servers that speak OpenAI's chat API: a client of one by its URL, and what the failures of all mean."""
