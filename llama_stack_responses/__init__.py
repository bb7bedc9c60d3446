"""The OpenAI Responses API for Llama Stack and OGX.

The public interface consists of `provider.get_provider_spec` and `host`, which the hosts import, `host.searxng`,
`host.ddgs` and `config.ResponsesConfig`. All other modules may change in any version.
"""
