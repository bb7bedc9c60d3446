"""A feature with a tool that neither OpenAI nor the core has: the model rolls dice."""
