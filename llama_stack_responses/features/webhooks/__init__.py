"""Signed webhooks: send the ends of background responses to endpoints of users and of the configuration."""
