"""What the tools that this server runs have in common, and the services of the stack that they use."""
