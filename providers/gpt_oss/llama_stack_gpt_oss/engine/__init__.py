"""The inference engine: tokens in, tokens out. It imports only torch, triton and the standard library."""
