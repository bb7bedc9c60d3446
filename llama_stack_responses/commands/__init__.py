"""What the commands of the program have in common, those of features too: options, errors, Ctrl-C, and the store."""
