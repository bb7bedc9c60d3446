"""The content of the built-in page: its files, and views of responses with rendered Markdown."""
