"""Keys with which users authenticate, for those without an identity provider."""
