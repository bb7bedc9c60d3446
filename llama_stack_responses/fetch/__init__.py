"""Fetching of the URLs that users and models name: permitted addresses (against SSRF) and limits on size."""
