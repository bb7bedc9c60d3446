"""The inference provider `remote::openai-chat`: any OpenAI-compatible model server, at a small CPU cost."""
