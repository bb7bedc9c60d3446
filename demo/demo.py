"""A short conversation with the Responses API: real server, real model, the ordinary `openai` package.

Run it with: make demo
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C exits silently while packages are imported

import inspect
import sys
import textwrap
from collections.abc import Callable

import openai
from openai import OpenAI
from openai.types.responses import FunctionToolParam, Response
from openai.types.responses.response_input_param import FunctionCallOutput
from pydantic import BaseModel

from environment import check_environment
from processes import ServerError, bypass_proxies, exit_on_signals
from stack import Stack, first_model, running_stack
from terminal import bold, dim, error
from tools import check_searxng


class Person(BaseModel):
    """The structure of the structured answer."""

    name: str
    city: str


# The demo prints the body of each of these functions before it runs it, so the output shows the code that ran.


def stream(client: OpenAI, model: str) -> Response | None:
    """1. A streamed answer, printed as it comes"""
    question = "My name is Ada and I live in Lisbon. Say hello to me in one short sentence."
    for event in client.responses.create(model=model, input=question, stream=True, temperature=0):
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
        elif event.type == "response.completed":
            print()
            return event.response
    return None


def follow_up(client: OpenAI, model: str, first: Response) -> Response:
    """2. A second question: the server knows the first one, so only the new words are sent"""
    response = client.responses.create(
        model=model, input="What is the name of my city?", previous_response_id=first.id, temperature=0
    )
    print(response.output_text)
    return response


def call_a_function(client: OpenAI, model: str) -> None:
    """3. A function call: the model asks for it, we answer, and it continues"""
    weather: FunctionToolParam = {
        "type": "function",
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Lisbon", "Oslo"]}}, "required": ["city"]},
        "strict": False,
    }
    response = client.responses.create(
        model=model, input="How is the weather in Lisbon?", tools=[weather], tool_choice="required", temperature=0
    )
    call = next(item for item in response.output if item.type == "function_call")
    print(f"The model calls {call.name}({call.arguments})")

    weather_now: FunctionCallOutput = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": "Sunny, 24 degrees.",
    }
    response = client.responses.create(
        model=model, input=[weather_now], previous_response_id=response.id, temperature=0
    )
    print(response.output_text)


def parse(client: OpenAI, model: str, second: Response) -> None:
    """4. A structured answer: an object of a class of ours, filled from the conversation"""
    response = client.responses.parse(
        model=model, input="Who am I?", text_format=Person, previous_response_id=second.id, temperature=0
    )
    print(repr(response.output_parsed))


def read_back(client: OpenAI, second: Response) -> None:
    """5. What the server has stored, read back"""
    stored = client.responses.retrieve(second.id)
    print(f"{stored.id} is {stored.status}: {stored.output_text}")
    print(f"It continues {stored.previous_response_id}")
    if stored.usage:
        print(f"{stored.usage.input_tokens} tokens read, {stored.usage.output_tokens} written")


def show[**P, R](step: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Print a step's title and code, then run it."""
    title = inspect.getdoc(step) or step.__name__
    body = inspect.getsource(step).partition('"""\n')[2]
    print(f"\n{bold(title)}\n\n{dim(textwrap.indent(textwrap.dedent(body), '    '))}")
    return step(*args, **kwargs)


def converse(stack: Stack) -> None:
    """Run the five steps."""
    client = stack.client()
    model = first_model(client)
    if model is None:
        raise stack.server.failure("lists no model")
    print(f'\nclient = OpenAI(base_url="{stack.base_url}", api_key="none")\nmodel = "{model}"')
    first = show(stream, client, model)
    if first is None:
        raise stack.server.failure("ended the stream without a completed response")
    second = show(follow_up, client, model, first)
    show(call_a_function, client, model)
    show(parse, client, model, second)
    show(read_back, client, second)
    print(f"\n{bold('Look at the conversation at ' + stack.page)}")
    if sys.stdin.isatty():
        input("Press Enter to end the server. ")


def main() -> int:
    """Run the demo; return 0 if every step succeeded."""
    exit_on_signals()
    bypass_proxies()
    try:
        check_environment()
        check_searxng()
    except ValueError as problem:
        error(f"\n{problem}")
        return 1
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
    print("\nDone; nothing is left running. To start a server that keeps running: make serve")
    return 0


if __name__ == "__main__":
    sys.exit(main())
