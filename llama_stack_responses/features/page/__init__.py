"""The built-in page: its files, the routes that it reads, and views of responses with rendered Markdown."""
