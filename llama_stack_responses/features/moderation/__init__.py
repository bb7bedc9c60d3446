"""Moderation of input and output: requests with `moderation` or `guardrails`."""
