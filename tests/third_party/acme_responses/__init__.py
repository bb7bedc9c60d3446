"""A package of another distribution: a feature and a store, written against the public API alone."""
