"""A short conversation with the Responses API: real server, real model, the ordinary `openai` package.

Run it with: make demo
"""

import inspect
import sys
import textwrap
from collections.abc import Callable

import openai
from openai import OpenAI
from openai.types.responses import Response
from processes import ServerError, exit_on_signals
from pydantic import BaseModel
from stack import Stack, first_model, running_stack
from terminal import bold, dim, error

PROMPT = "My name is Ada and I live in Lisbon. Say hello to me in one short sentence."
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Lisbon", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Person(BaseModel):
    """What the structured answer must look like."""

    name: str
    city: str


# The demo prints the body of each of these functions before it runs it: what you read is what ran.


def stream(client: OpenAI, model: str) -> Response | None:
    """1. A streamed answer, printed as it comes"""
    for event in client.responses.create(model=model, input=PROMPT, stream=True, temperature=0):
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
        if event.type == "response.completed":
            return event.response
    return None


def follow_up(client: OpenAI, model: str, previous: Response) -> Response:
    """2. A second question: the server remembers the first one"""
    response = client.responses.create(
        model=model, previous_response_id=previous.id, input="What is my name, and where do I live?", temperature=0
    )
    print(response.output_text)
    return response


def call_a_function(client: OpenAI, model: str) -> Response:
    """3. A function call, and its output sent back"""
    response = client.responses.create(
        model=model, tools=[WEATHER], tool_choice="required", input="How is the weather in Lisbon?", temperature=0
    )
    call = next(item for item in response.output if item.type == "function_call")
    print(f"The model calls {call.name}({call.arguments})")

    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 24 degrees."}
    response = client.responses.create(model=model, previous_response_id=response.id, input=[output], temperature=0)
    print(response.output_text)
    return response


def parse(client: OpenAI, model: str, previous: Response) -> Person | None:
    """4. A structured answer: an object, not text"""
    response = client.responses.parse(
        model=model, previous_response_id=previous.id, input="Who am I?", text_format=Person, temperature=0
    )
    print(repr(response.output_parsed))
    return response.output_parsed


def retrieve(client: OpenAI, previous: Response) -> Response:
    """5. The stored conversation, read back"""
    response = client.responses.retrieve(previous.id)
    print(response.id, response.status, "-", response.output_text)
    for item in client.responses.input_items.list(previous.id, order="asc"):
        print(" ", item.role, "-", item.content[0].text)
    return response


def run[**P, R](step: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Show a step's title and code, then run it."""
    title = inspect.getdoc(step) or step.__name__
    body = inspect.getsource(step).partition('"""\n')[2]
    print(f"\n{bold(title)}\n\n{dim(textwrap.indent(textwrap.dedent(body), '    '))}")
    result = step(*args, **kwargs)
    print()
    return result


def converse(stack: Stack) -> None:
    """The five steps."""
    client = stack.client()
    model = first_model(client)
    if model is None:
        raise stack.server.failure("lists no model")
    print(f'\nclient = OpenAI(base_url="{stack.base_url}", api_key="none")\nmodel = "{model}"')
    first = run(stream, client, model)
    if first is None:
        raise stack.server.failure("ended the stream without a completed response")
    second = run(follow_up, client, model, first)
    run(call_a_function, client, model)
    run(parse, client, model, second)
    run(retrieve, client, second)
    print("\nThat is all; everything that was started is now stopped. To keep a server running: make serve")


def main() -> int:
    """Run the demo: 0 when every step went well."""
    exit_on_signals()
    try:
        with running_stack() as stack:
            try:
                converse(stack)
            except openai.APIError as problem:
                raise stack.server.failure(f"answered with an error ({problem})") from problem
    except ServerError as problem:
        error(f"\nThe demo failed. {problem}")
        return 1
    except KeyboardInterrupt:
        print("\nStopped.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
