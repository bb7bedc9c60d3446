"""Tokens in, tokens out. The engine imports torch, triton and the standard library; it knows no host and no chat."""
