"""The sections of the benchmark of the gpt-oss engine. They need torch and Triton only."""
