"""Complete stacks on the tiny checkpoint that speaks Harmony, and requests to them."""

import json
import sysconfig
from pathlib import Path
from typing import Any

import httpx
import openai
from openai.types.responses import Response, ResponseFunctionToolCall

from llama_stack_gpt_oss.process.status import read_metrics
from tests.support.stack import REPOSITORY, Host, LiveStack

from .lessons import FACTS, WEATHER, call_reasoning
from .processes import wait_for
from .trained import write_trained
from .vocabulary import SPECIAL

TEMPLATE = REPOSITORY / "templates" / "gpt-oss" / "config.yaml"
MODEL = "gpt-oss/trained"
QUESTION, REASONING, ANSWER = FACTS[0]
TOOL: Any = {"type": "function", **WEATHER["function"]}
ASKED: Any = [{"role": "user", "content": QUESTION}]
ENDLESS: Any = {str(SPECIAL["<|channel|>"]): 100}
"""A bias with which the model repeats a special token up to the end of the context, and so writes no visible text."""
GREEDY: Any = {"model": MODEL, "temperature": 0}
CONTEXT = 4096
ENV = {"GPT_OSS_DEVICE": "cpu", "GPT_OSS_CONTEXT": str(CONTEXT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def trained_stack(folder: Path, host: Host = "llama_stack") -> LiveStack:
    """Return a stack of the template, not yet started, that writes only into the folder."""
    env = {**ENV, "GPT_OSS_CHECKPOINT": str(write_trained(folder / "trained"))}
    if host == "llama_stack":
        return LiveStack(TEMPLATE, env, folder / "stack")
    python = REPOSITORY / ".venv-ogx" / "bin" / "python"
    return LiveStack(TEMPLATE, env | _packages_of_this_python(folder / "path"), folder / "stack", host, python)


def _packages_of_this_python(folder: Path) -> dict[str, str]:
    """Return the environment in which another Python finds this one's packages after its own.

    The two hosts cannot be installed together, and torch is too large to be installed twice.
    """
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import site\n\nsite.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return {"PYTHONPATH": str(folder)}


def metrics(stack: LiveStack) -> dict[str, Any]:
    """Return the metrics of the stack's engine."""
    (path,) = stack.state_dir.glob("engine-*.sock")
    return read_metrics(path)


def streamed(client: openai.OpenAI) -> dict[str, str]:
    """Return the joined deltas of an answer to QUESTION, by event type."""
    added: dict[str, str] = {}
    for event in client.responses.create(input=QUESTION, stream=True, **GREEDY):
        if event.type in ("response.output_text.delta", "response.reasoning_text.delta"):
            added[event.type] = added.get(event.type, "") + event.delta
        if event.type == "response.completed":
            assert event.response.output_text == ANSWER
    return added


def wait_for_engine(stack: LiveStack) -> None:
    """Wait until the engine is ready and healthy: the host serves before, and a busy machine delays the answer."""
    wait_for(lambda: health(stack) == {"status": "OK"})


def health(stack: LiveStack) -> dict[str, Any]:
    """Return this provider's health in the host's list of providers."""
    listed = httpx.get(f"{stack.base_url}/v1/providers", timeout=60, trust_env=False).json()["data"]
    (found,) = [each["health"] for each in listed if each["api"] == "inference"]
    return dict(found)


def leave_before_visible_text(stack: LiveStack, path: str, **prompt: Any) -> Any:
    """Return the first chunk of a stream without visible text, whose client leaves then; wait until its request ends."""
    before = metrics(stack)["generated_tokens"]
    body = {"model": MODEL, "stream": True, "temperature": 0, "logit_bias": ENDLESS, **prompt}
    with httpx.Client(base_url=stack.base_url, timeout=60, trust_env=False) as http:
        with http.stream("POST", path, json=body) as response:
            first = next(response.iter_lines())
        wait_for(lambda: metrics(stack)["running"] == 0)
    assert metrics(stack)["generated_tokens"] - before < CONTEXT // 2
    return json.loads(first.removeprefix("data: "))


STREAMED = {"response.output_text.delta": ANSWER, "response.reasoning_text.delta": REASONING}


def reasoning_of(response: Response) -> str:
    return "".join(part.text for item in response.output if item.type == "reasoning" for part in item.content or [])


def weather_call(client: openai.OpenAI) -> tuple[Response, ResponseFunctionToolCall]:
    """Return a response that ends in a call the model chose freely, and the call."""
    response = client.responses.create(input="What is the weather in Oslo?", tools=[TOOL], **GREEDY)
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Oslo"})
    assert reasoning_of(response) == call_reasoning("Oslo")
    return response, call


def continued_with(client: openai.OpenAI, called: Response, call: ResponseFunctionToolCall, result: str) -> Response:
    """Return the model's response to the result of the call."""
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": result}
    return client.responses.create(input=[output], previous_response_id=called.id, tools=[TOOL], **GREEDY)
