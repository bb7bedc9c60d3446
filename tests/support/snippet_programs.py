"""The test of each code block of the documentation (`documents`): a program, a configuration, or why none."""

import json
from dataclasses import dataclass
from typing import Final

from tests.support.upstream import Reply, reasoning, reply, text, tool_call

SNOW: Final = reply(text("It ", "snows."))
ADA: Final = reply(text("Ada."))
PATCH: Final = "--- a.py\\n+++ a.py\\n"
SEARCH: Final = reply(tool_call(0, "c1", "web_search", '{"queries": ["otters asleep"]}'))
OTTERS_FOUND: Final = reply(text("Hand in hand 【1】."))
WEATHER: Final = reply(tool_call(0, "c1", "get_weather", '{"city": "Oslo"}'))
SUM_OF_STOCK: Final = """
const articles = ["desk", "lamp", "chair"];
const found = await Promise.all(articles.map(article => tools.stock({article})));
return found.reduce((sum, each) => sum + each.units, 0);
"""
SALES_CHART: Final = """
import matplotlib.pyplot as plt
import pandas as pd
sales = pd.Series({"Oslo": 12, "Lisbon": 9, "Kyoto": 15})
sales.plot.bar()
plt.savefig("sales.png")
plt.show()
"""


@dataclass(frozen=True, slots=True)
class Program:
    """The replies for a program of the documentation, and its expected output.

    Attributes:
        replies: the model's replies.
        prints: strings that the output must contain.
        client: the environment in `.clients`; None for that of the tests.
        held_until: the model's reply is held until the program has printed this.
        model: the model's name in the block.
    """

    replies: tuple[Reply, ...]
    prints: tuple[str, ...]
    client: str | None = None
    held_until: str | None = None
    model: str = "NAME"


QUICKSTART: Final = {
    "README.md, Five minutes, python": Program((SNOW, ADA), ("Ada.",), model="YOUR-MODEL"),
    "docs/quickstart.md, 2. Get a response, python": Program((SNOW,), ("resp_", " completed", "It snows.")),
    "docs/quickstart.md, 3. Continue it, python": Program((SNOW, ADA), ("Ada.",)),
    "docs/quickstart.md, 4. Stream it, python": Program((SNOW,), ("It snows.",)),
    "docs/quickstart.md, 5. Let the model call a function of yours, python": Program(
        (WEATHER, SNOW), ("the model asks for get_weather Oslo", "It snows.")
    ),
    "docs/quickstart.md, 6. Let the server search the web, python": Program(
        (SEARCH, OTTERS_FOUND), ("web_search_call\nmessage\n", "Hand in hand ([en.wikipedia.org](")
    ),
}
FEATURES: Final = {
    "docs/guides/functions.md, Functions and other client tools, python": Program((WEATHER, SNOW), ("It snows.",)),
    "docs/guides/functions.md, A custom tool, python": Program(
        (reply(tool_call(0, "c1", "patch", f'{{"input": "{PATCH}"}}')),), ("custom_tool_call --- a.py",)
    ),
    "docs/guides/structured-output.md, Structured output, python": Program(
        (reply(text('{"name": "fair", "day": "Friday", ', '"guests": ["Ada", "Grace"]}')),),
        ("fair Friday ['Ada', 'Grace']",),
    ),
    "docs/guides/structured-output.md, Structured output, python 2": Program(
        (reply(text('{"celsius": -4, "sky": "snow"}')),), ("snow",)
    ),
    "docs/guides/streaming.md, Streaming, python": Program((SNOW,), ("It snows.\n", "output tokens:")),
    "docs/guides/streaming.md, Replay a stream, python": Program(
        (SNOW,), ("3 response.content_part.added", "response.completed")
    ),
    "docs/guides/reasoning.md, Reasoning, python": Program(
        (reply(reasoning("7 times", " 13."), text("No.")),), ("reasoning: 7 times 13.", "No.")
    ),
    "docs/guides/reasoning.md, Changes within a conversation, python": Program(
        (reply(text("No.")), reply(text("Yes."))), ("No. Yes.",)
    ),
    "docs/guides/images-and-files.md, Images and files, python": Program((SNOW,), ("It snows.",)),
    "docs/guides/conversations.md, Conversations, python": Program(
        (SNOW,), ("developer Be brief.", "user Hi!", "assistant It snows.", "user And?")
    ),
    "docs/guides/compaction.md, Compaction, truncation and token counts, python": Program(
        (reply(text("Tuesday is for the opera.")), reply(text("The opera."))),
        ("tokens: ", "['message', 'compaction']", "The opera."),
    ),
    "docs/guides/background.md, Background responses, python": Program((SNOW,), ("completed It snows.",)),
    "docs/guides/background.md, Background responses, python 2": Program(
        (SNOW,), ("1 response.queued", "response.completed")
    ),
    "docs/guides/websocket.md, WebSocket, python": Program((SNOW, ADA), ("Ada.",)),
    "docs/guides/websocket.md, Steering, python": Program(
        (reply(reasoning("Oslo", "?"), text("never"), hold=2, end="hang"), reply(text("It rains."))),
        ("accepted: steer_", "It rains."),
        held_until="accepted",
    ),
    "docs/guides/idempotency.md, Idempotent requests, python": Program(
        (SNOW,), ("1 resp_", " None\n2 resp_", " true\n")
    ),
    "docs/guides/prompts.md, Prompts, python": Program((SNOW,), ("It snows.",)),
    "docs/guides/usage.md, Read it, python": Program((), ()),
    "docs/guides/batches.md, Run one, python": Program(
        (SNOW,), ("completed BatchRequestCounts(completed=3, failed=0, total=3)", "line-2 It snows.")
    ),
    "docs/guides/webhooks.md, Receive one, python": Program((SNOW,), ("response.completed It snows.",)),
    "docs/guides/moderation.md, Moderation, python": Program((SNOW,), ("completed It snows.", "violence")),
}
HOSTED_TOOLS: Final = {
    "docs/guides/web-search.md, Web search, python": Program(
        (SEARCH, OTTERS_FOUND),
        ("Hand in hand ([en.wikipedia.org](https://en.wikipedia.org/wiki/Otter)).", "AnnotationURLCitation("),
    ),
    "docs/guides/file-search.md, File search, python": Program(
        (
            reply(tool_call(0, "c1", "file_search", '{"queries": ["otters sleep"]}')),
            reply(text("Hand in hand 【F1】.")),
        ),
        ("AnnotationFileCitation(", "filename='otters.txt'"),
    ),
    "docs/guides/code-interpreter.md, Code interpreter, python": Program(
        (reply(tool_call(0, "c1", "python", '{"code": "print(500 + 41)"}')), reply(text("541."))),
        ("print(500 + 41) [", "541\\n", "541."),
    ),
    "docs/guides/code-interpreter.md, Figures and files, python": Program(
        (
            reply(tool_call(0, "c1", "python", json.dumps({"code": SALES_CHART}))),
            reply(text("Kyoto leads: 【f1】.")),
        ),
        ("image.png saved", "/mnt/data/sales.png saved", "Kyoto leads: [sales.png](sandbox:/mnt/data/sales.png)."),
    ),
    "docs/guides/image-generation.md, Image generation, python": Program(
        (
            reply(tool_call(0, "c1", "generate_image", '{"prompt": "An otter that sleeps on a river"}')),
            reply(text("Here it is.")),
            reply(tool_call(0, "c2", "generate_image", '{"prompt": "A hat", "images": ["input-1"]}')),
            reply(text("There is no such image.")),
        ),
        ("completed 1024x1024 An otter that sleeps on a river", "None There is no such image."),
    ),
    "docs/guides/programs.md, Programs that call tools, python": Program(
        (
            reply(tool_call(0, "c1", "run_program", json.dumps({"code": SUM_OF_STOCK}))),
            reply(text("There are 18.")),
        ),
        ("There are 18.",),
    ),
    "docs/guides/code-interpreter.md, Network, python": Program(
        (
            reply(tool_call(0, "c1", "shell", '{"commands": ["test \\"$GITHUB_TOKEN\\" = \\\\$GITHUB_TOKEN"]}')),
            reply(text("None has any.")),
        ),
        ("None has any.",),
    ),
    "docs/guides/code-interpreter.md, Skills, python": Program(
        (
            reply(tool_call(0, "c1", "shell", '{"commands": ["python skills/sums/add.py 20 22"]}')),
            reply(text("It is 42.")),
        ),
        ("It is 42.",),
    ),
    "docs/guides/code-interpreter.md, Stored skills, python": Program(
        (
            reply(tool_call(0, "c1", "shell", '{"commands": ["python skills/sums/add.py 20 22"]}')),
            reply(text("It is 42.")),
        ),
        ("It is 42.",),
    ),
    "docs/guides/mcp.md, MCP servers, python": Program(
        (reply(tool_call(0, "c1", "deepwiki__echo", '{"text": "sessions"}')), SNOW),
        ("""[('echo', '{"text": "sessions"}')]""", "It snows."),
    ),
}
CLIENTS: Final = {
    f"docs/guides/clients.md, {name}": Program((SNOW,), ("It snows.",), client)
    for name, client in (
        ("The hosts' own clients, python", "llama-stack-client"),
        ("OpenAI Agents SDK, python", "agents"),
        ("OpenAI Agents SDK for JavaScript, js", "agents-node"),
        ("LangChain, python", "langchain"),
        ("pydantic-ai, python", "pydantic-ai"),
        ("Vercel AI SDK, js", "vercel"),
        ("Vercel AI SDK, js 2", "vercel"),
        ("OpenAI SDK for Node, js", "openai-node"),
    )
}
PROGRAMS: Final = QUICKSTART | FEATURES | HOSTED_TOOLS | CLIENTS

CODEX: Final = "docs/guides/clients.md, Codex CLI"
CODEX_BY_URL: Final = f"{CODEX}, toml"
CODEX_BY_PROVIDER: Final = (f"{CODEX}, toml 2", f"{CODEX}, python", f"{CODEX}, toml 3")

OF_LLAMA_STACK: Final = "docs/guides/moderation.md, Set up a moderator, yaml 2"
"""OGX has no Safety API."""
POSTGRES: Final = "docs/reference/configuration.md, Stores, yaml"
CLUSTER: Final = "docs/reference/configuration.md, A cluster, yaml"
PRIVATE_TLS: Final = "docs/reference/configuration.md, The model server, yaml"
BUILT: Final = (POSTGRES, CLUSTER, PRIVATE_TLS)
"""Only their configuration objects are built: a stack has one store and one model server."""

COMMANDS: Final = (
    "docs/guides/backup.md, Backup, console",
    "docs/guides/installation.md, With a ready configuration, console",
    "docs/guides/operations.md, Clocks, console",
    "docs/guides/operations.md, Look at the store, console",
    "docs/guides/operations.md, Traces and metrics, sh",
    "docs/guides/operations.md, Traces and metrics, sh 2",
    "docs/guides/scaling.md, Several servers, console",
)
"""`tests/integration/test_documented_commands.py` pastes them."""

MAKE: Final = (
    "README.md, Five minutes, console",
    "README.md, Five minutes, console 2",
    "docs/quickstart.md, 1. Start a server, console",
    "docs/guides/code-interpreter.md, Packages, console",
    "docs/guides/file-search.md, Try it, console",
)
"""`tests/demo/test_documented.py` pastes them."""
GET: Final = "docs/guides/installation.md, Get the package, sh"
INSTALL: Final = "docs/guides/installation.md, In a stack of your own, console"
WITHOUT_ORACLE: Final = "docs/guides/installation.md, Without the packages for Oracle's cloud, sh"
PINNED: Final = f"{WITHOUT_ORACLE} 2"
INSTALLING: Final = (GET, INSTALL, WITHOUT_ORACLE, PINNED)
"""`tests/wheels/try_wheels.py` pastes them: they need a package index."""
LIST_DEPS: Final = "docs/guides/installation.md, With a ready configuration, console 2"
"""`tests/integration/test_list_deps.py` pastes it."""
UI_ANSWERS: Final = tuple(
    f"docs/reference/ui.md, {section}, json"
    for section in (
        "`GET /v1/ui/session`",
        "`GET /v1/ui/tools`",
        "`GET /v1/ui/cards`",
        "`GET /v1/ui/responses`",
        "`GET /v1/ui/export`",
        "`GET /v1/ui/sessions`",
        "`GET /v1/ui/refused/{id}`",
        "`GET /v1/ui/responses/{id}`",
        "Timing",
        "`GET /v1/ui/responses/{id}/events`",
        "`GET /v1/ui/responses/{id}/requests`",
        "`GET /v1/ui/chain/{id}`",
        "`GET /v1/ui/conversations/{id}`",
        "`GET /v1/ui/live`",
        "`GET /v1/ui/stats`",
        "`GET /v1/ui/history`",
    )
)
"""`tests/integration/test_documented_answers.py` compares them with answers."""
SCORE: Final = "docs/reference/api.md, Scores, json"
"""The same test compares it with an answer."""
LINKS: Final = (
    "docs/reference/ui.md, Links to one response, json",
    "docs/reference/ui.md, Links to one response, json 2",
)
"""`tests/unit/features/page/test_shared_links.py` sends the first, and compares the second with the answer."""
READINESS: Final = "docs/guides/operations.md, Readiness, json"
"""`tests/integration/test_readiness.py` compares it with an answer."""
LOG_LINE: Final = "docs/guides/operations.md, Log lines, text"
"""`tests/integration/test_log_lines.py` compares it with a line of the log."""
BLOCKED_LOOP: Final = "docs/guides/operations.md, A blocked event loop, text"
"""`tests/unit/telemetry/test_loop_monitor.py` compares it with a line of the log."""
PROFILES_FILE: Final = "docs/guides/model-servers.md, Profiles of model servers, yaml"
"""`tests/unit/config/test_server_profiles.py` reads it."""
TYPED_SEARCH: Final = "docs/guides/ui.md, Search, text"
"""`tests/unit/features/page/test_search.py` reads it."""
SHOWN: Final = (*UI_ANSWERS, SCORE, *LINKS, TYPED_SEARCH, READINESS, LOG_LINE, BLOCKED_LOOP, PROFILES_FILE, LIST_DEPS)

TUTORIAL: Final = [
    f"docs/tutorial.md, {name}"
    for name in (
        "1. Start the server, console",
        "2. Begin with an empty folder, console",
        "3. Write a tool, python",
        "3. Write a tool, console",
        "4. Write the agent, python",
        "4. Write the agent, console",
        "4. Write the agent, text",
        "5. Draw a chart, console",
        "6. Restart the server, console",
        "7. Let it write a report, python",
        "7. Let it write a report, console",
    )
]

TEAM: Final = [
    f"docs/guides/team.md, {name}"
    for name in (
        "1. Files, sh",
        "2. Database, sh",
        "3. Settings and the secret, sh",
        "4. Users, sh",
        "5. Start, sh",
        "6. Use it, sh",
        "6. Use it, sh 2",
        "6. Use it, sh 3",
        "6. Use it, sh 4",
        "7. Metrics, sh",
        "8. Backup, sh",
        "9. Upgrade, sh",
    )
]

NOT_RUN: Final = {
    "README.md, Tests, console": "these tests",
    "CONTRIBUTING.md, Contributing, console": "these tests",
    "docs/reference/public-api.md, A feature of your own, toml": "test_third_party.py has such a package",
    "docs/reference/public-api.md, A feature of your own, python": "the same",
    "docs/reference/public-api.md, A store of your own, toml": "the same",
    "docs/reference/public-api.md, A store of your own, yaml": "the same",
    "providers/gpt_oss/README.md, llama-stack-gpt-oss, console": "installs torch: `make test-gpt-oss` does",
    "providers/gpt_oss/README.md, llama-stack-gpt-oss, yaml": "loads a checkpoint; test_snippets.py compares it with the template",
    "docs/explanation/performance.md, Performance, console": "measures for ten minutes",
    "docs/explanation/performance.md, Stores, console": "measures for seven minutes",
    "docs/explanation/performance.md, Waiting, console": "measures for two minutes",
    "docs/explanation/performance.md, Servers that die, console": "measures for four minutes; test_durability.py runs less",
    "docs/guides/deploying.md, Deploying, console": "needs podman, Kubernetes and root; test_snippets.py runs its first line, test_deploy_templates.py checks the files",
    "docs/guides/deploying.md, systemd, console": "needs systemd and root; test_deploy_templates.py checks the unit",
    "docs/guides/deploying.md, Commands and metrics, console": "needs systemd and the unit; test_documented_commands.py runs `list`",
    "docs/guides/deploying.md, Commands and metrics, console 2": "needs Kubernetes; test_documented_commands.py runs `backup`",
    "docs/guides/deploying.md, What the image has, sh": "needs podman and a registry",
    "docs/guides/deploying.md, Compose, sh": "needs podman; test_deploy_templates.py compares it with the compose file",
    "docs/guides/backup.md, Move a store while it is used, sh": "test_moving.py runs these commands",
    "docs/guides/cluster.md, Beyond one machine, console": "six nodes; test_cluster_template.py starts the same",
    "docs/guides/cluster.md, PostgreSQL on several machines, sql": "needs a distributed PostgreSQL: the page says that this is untested",
    "docs/guides/scaling.md, Several processes of one server, console": "test_serve.py and test_workers.py start two",
    "docs/guides/cold-responses.md, Responses in an object store, yaml": "tests/unit/features/cold/test_settings.py reads it",
    "docs/guides/webhooks.md, For all users, yaml": "tests/unit/features/webhooks/test_settings.py reads it",
    "docs/guides/keys.md, Turn them on, yaml": "test_keys.py starts a stack with it",
    "docs/guides/keys.md, Turn them on, console": "test_keys.py runs it",
    "docs/guides/keys.md, Operators and leads of teams, yaml": "test_keys.py starts a stack with it",
    "docs/guides/backup.md, A damaged file, console": "test_store_faults.py runs it on a damaged file",
    "docs/guides/model-servers.md, Ask a model server, text": "words and speeds differ; test_model_servers.py compares the table below",
    "docs/guides/usage.md, Limits, yaml": "would refuse requests of other blocks; test_usage.py has limits on a live stack",
    "docs/guides/usage.md, Stored bytes, yaml": "would refuse requests of other blocks; test_stored_limits.py has such limits",
    "docs/guides/usage.md, Read it, console": "test_documented_commands.py runs `usage`, tests/unit/features/usage its forms",
    "docs/guides/programs.md, Programs that call tools, javascript": "the model of the block before it writes it",
    **dict.fromkeys(TUTORIAL, "tests/demo/test_tutorial.py runs the whole page"),
    **dict.fromkeys(TEAM, "test_team_guide.py runs the whole page in one shell"),
    "docs/reference/compatibility.md, Run them again, console": "runs the tests of another project",
    "docs/reference/compatibility.md, Open Responses, console": "the same; test_open_responses.py has its cases",
    "docs/guides/gpt-oss.md, Start it, console": "installs torch and loads a checkpoint: tests/gpt_oss/test_stack.py does",
    "docs/guides/gpt-oss.md, Start it, console 2": "the same on OGX: tests/gpt_oss/test_ogx.py does",
    "docs/guides/gpt-oss.md, The engine, console": "needs an engine: tests/gpt_oss/test_process.py has one",
    "docs/guides/gpt-oss.md, On vLLM or llama.cpp, console": "needs vLLM and a GPU; test_gpt_oss_servers.py has the template",
    "docs/guides/gpt-oss.md, On vLLM or llama.cpp, console 2": "loads 12 GB; test_gpt_oss_servers.py has the template",
}
