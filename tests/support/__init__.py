"""Test support: a scripted model server, live stacks, and validators of the wire format."""
