"""The wheels as users install them. `make test-wheels` needs a package index, which no other test does."""
