"""File search: the tool `file_search`, with which the model searches the stack's vector stores."""
