"""The input of a response: its history, its stored prompt, its files and images, resolved by `resolver.py`."""
