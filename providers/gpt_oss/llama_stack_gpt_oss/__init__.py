"""gpt-oss on the local GPU, as a provider of the host's Inference API."""
