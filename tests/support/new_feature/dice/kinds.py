"""The declaration of the tool, and the item of its calls."""

from __future__ import annotations

from typing import Final

from llama_stack_responses.core.exchanges import exchange
from llama_stack_responses.core.item_fields import CALL_STATUS, OWN_ID
from llama_stack_responses.core.shapes import integer, object_of
from llama_stack_responses.core.types import Json
from llama_stack_responses.items.form import ItemForm, stage_events
from llama_stack_responses.items.kind import ItemKind, Kinds, ToolType
from llama_stack_responses.items.view import CallView

FORM: Final = ItemForm(
    "dice_call", "dice", stages=stage_events("dice_call", "in_progress", "completed"), results={"rolled": None}
)
_ITEM: Final = object_of({"id": OWN_ID, "sides": integer(2), "rolled": integer(1), "status": CALL_STATUS}, "sides")


def _exchange(item: Json) -> Json:
    return exchange("dice", {"sides": item["sides"]}, str(item.get("rolled")))


KINDS: Final = Kinds(
    items=(ItemKind(FORM, _ITEM, _exchange, CallView("dice"), written={"sides": ()}),),
    tools=(ToolType("dice", object_of({"sides": integer(2)})),),
)
