"""A complete OpenAI Responses API for Llama Stack."""
