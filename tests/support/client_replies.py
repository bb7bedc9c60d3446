"""What the model answers to the scenarios of the clients in `tests/clients`."""

import json
from typing import Final

from tests.support.upstream import reasoning, reply, text, tool_call

SAID: Final = reply(text("It ", "snows."))
WEATHER: Final = reply(reasoning("Hm."), tool_call(0, "c1", "weather", '{"city":', '"Oslo"}'))
"""A call of the scenarios' function `weather`."""

_CODE: Final = (
    "const all = await Promise.all(['a', 'b'].map(sku => tools.stock({sku}))); return all[0].units + all[1].units"
)
PROGRAM: Final = reply(tool_call(0, "c1", "run_program", json.dumps({"code": _CODE})))
"""A program that calls the scenarios' function `stock` twice, and returns the sum, 18."""
