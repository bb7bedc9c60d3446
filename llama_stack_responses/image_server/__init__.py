"""A client of servers with OpenAI's API for images."""
