"""What the server tells the page of kinds of items."""

import json
import re

from llama_stack_responses.core.types import Json
from llama_stack_responses.features.page.assets import Assets


def kinds_of_page() -> Json:
    """Return the values of the module `kinds.js`, by their names."""
    assets = Assets({})
    assets.read()
    module = assets.find("kinds.js")
    assert module
    lines = re.findall(r"^export const (\w+) = (.*);$", module.content.decode(), re.MULTILINE)
    return {name: json.loads(value) for name, value in lines}
