"""gpt-oss on the local GPU, behind the host's Inference interface."""
