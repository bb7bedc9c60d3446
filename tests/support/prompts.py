"""Prompts in the host's Prompts API.

prompts = PromptsClient(stack)
prompt_id = prompts.write("Speak {{language}}.", "language")
"""

from typing import Any

import httpx

from tests.support.stack import LiveStack

type Json = dict[str, Any]


class PromptsClient:
    """A client of the host's Prompts API."""

    def __init__(self, stack: LiveStack, token: str | None = None) -> None:
        """Create a client."""
        self._url = f"{stack.base_url}/v1/prompts"
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    def write(self, text: str, *variables: str) -> str:
        """Create a prompt and return its id."""
        found: str = self._send("POST", "", {"prompt": text, "variables": variables})["prompt_id"]
        return found

    def rewrite(self, prompt_id: str, version: int, text: str, *variables: str) -> None:
        """Store a new version of a prompt; `version` is the current one."""
        self._send("PUT", f"/{prompt_id}", {"prompt": text, "variables": variables, "version": version})

    def _send(self, method: str, path: str, body: Json) -> Json:
        answer = httpx.request(
            method, self._url + path, json=body, headers=self._headers, trust_env=False, verify=False, timeout=60
        )
        assert answer.is_success, answer.text
        found: Json = answer.json()
        return found
