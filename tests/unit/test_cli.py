"""The command line: what it writes, what it refuses and what it prints."""

from pathlib import Path

import pytest
import yaml

from llama_stack_responses import cli
from llama_stack_responses.cli import main


def test_init_writes_config_and_prints_next_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "my stack"
    assert main(["init", "starter", str(folder)]) == 0
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["providers"]["responses"][0]["module"] == "llama_stack_responses"
    assert f"llama stack run '{folder}/config.yaml'" in capsys.readouterr().out


def test_command_without_its_packages_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def needs_more(_: object) -> None:
        raise ModuleNotFoundError("No module named 'orjson'", name="orjson")

    monkeypatch.setattr(cli, "init", needs_more)
    assert main(["init", "starter", str(tmp_path)]) == 1
    assert "pip install 'llama-stack-responses[llama-stack]'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["postgres", "redis"])
def test_templates_differ_only_in_store(name: str, tmp_path: Path) -> None:
    configs = []
    for each in (name, "starter"):
        assert main(["init", each, str(tmp_path / each)]) == 0
        config = yaml.safe_load((tmp_path / each / "config.yaml").read_text())
        assert config.pop("distro_name") == f"responses-{each}"
        configs.append((config["providers"]["responses"][0]["config"].pop("store")["type"], config))
    (kind, config), (sqlite, starter) = configs
    assert (kind, sqlite) == (name, "sqlite")
    # A container and a vector store in files live in one server, and the others are for several.
    providers = starter["providers"]
    settings, several = (each["providers"]["responses"][0]["config"] for each in (starter, config))
    assert settings.pop("code_interpreter")
    starter["apis"].remove("vector_io")
    assert providers.pop("vector_io")
    assert providers.pop("file_processors")
    [local, embeddings] = providers["inference"]
    assert embeddings["config"]["embedding_models"] == local["config"].pop("embedding_models")
    providers["inference"] = [local]
    # Only the starter takes over threads of other servers: of several servers, one may lack a secret.
    assert settings.pop("unreadable_reasoning") == "drop"
    assert settings.pop("unavailable_tools") == "${env.UNAVAILABLE_TOOLS:=omit}"
    assert several.pop("unavailable_tools") == "${env.UNAVAILABLE_TOOLS:=refuse}"
    assert config == starter


def test_scale_out_template_is_redis_with_vllm_and_nginx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "scale-out", str(tmp_path / "scale-out")]) == 0
    output = capsys.readouterr().out
    assert f"Wrote {tmp_path}/scale-out/config.yaml, {tmp_path}/scale-out/nginx.conf." in output
    assert f"llama stack run {tmp_path}/scale-out/config.yaml" in output
    assert main(["init", "redis", str(tmp_path / "redis")]) == 0
    config, redis = (yaml.safe_load((tmp_path / name / "config.yaml").read_text()) for name in ("scale-out", "redis"))
    of_both = [each["providers"]["responses"][0]["config"] for each in (config, redis)]
    assert of_both[0].pop("background") == {"concurrency": 32, "waiting": 5000}
    # The other servers behind its nginx take what a stopping one refuses, which may finish what it began.
    assert [each.pop("finish_seconds") for each in of_both] == [f"${{env.FINISH_SECONDS:={s}}}" for s in (30, 0)]
    assert of_both[0] == of_both[1]
    assert config["providers"]["inference"][0]["provider_type"] == "remote::vllm"
    for part in ("storage", "server"):
        assert config[part] == redis[part]


def test_cluster_template_is_scale_out_in_a_cluster_with_a_third_server() -> None:
    texts = [(cli.templates_folder() / name / "nginx.conf").read_text() for name in ("scale-out", "cluster")]
    server = "        server 127.0.0.1:8322 max_fails=0;\n"
    assert texts[0].replace(server, server + server.replace("8322", "8323")) == texts[1]
    configs = [
        yaml.safe_load((cli.templates_folder() / name / "config.yaml").read_text()) for name in ("scale-out", "cluster")
    ]
    of_both = [each["providers"]["responses"][0]["config"] for each in configs]
    assert [each.pop("store")["type"] for each in of_both] == ["redis", "cluster"]
    assert of_both[1].pop("archive") == {"url": "${env.ARCHIVE_URL:=}", "after_hours": 48}
    assert [each.pop("distro_name") for each in configs] == ["responses-scale-out", "responses-cluster"]
    assert configs[0] == configs[1]


@pytest.mark.parametrize(
    ("server", "provider_type", "field"),
    [("vllm", "remote::vllm", "reasoning"), ("llama-cpp", "remote::openai-chat", "reasoning_content")],
)
def test_gpt_oss_templates_differ_only_in_inference_provider_and_profile(
    server: str, provider_type: str, field: str, tmp_path: Path
) -> None:
    """So another server keeps the model's names, the store and its content."""
    configs = []
    for each in ("gpt-oss", f"gpt-oss-{server}"):
        assert main(["init", each, str(tmp_path / each)]) == 0
        config = yaml.safe_load((tmp_path / each / "config.yaml").read_text())
        assert config.pop("distro_name") == f"responses-{each}"
        [provider] = config["providers"].pop("inference")
        assert provider["provider_id"] == "gpt-oss"
        profiles = config["providers"]["responses"][0]["config"].pop("profiles", [])
        configs.append((config, provider["provider_type"], profiles))
    (engine, _, _), (other, found, [profile]) = configs
    assert engine == other
    assert found == provider_type
    assert profile == {"match": "gpt-oss/*", "reasoning_replay": field, "images": False, "audio": False}


def test_init_overwrites_no_file_of_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nginx.conf").write_text("mine")
    assert main(["init", "scale-out", str(tmp_path)]) == 1
    assert f"{tmp_path}/nginx.conf already exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["nginx.conf"]


def test_init_overwrites_only_with_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "config.yaml"
    target.write_text("mine")
    assert main(["init", "starter", str(tmp_path)]) == 1
    assert "--force" in capsys.readouterr().err
    assert target.read_text() == "mine"
    assert main(["init", "starter", str(tmp_path), "--force"]) == 0
    assert target.read_text() != "mine"


def test_unknown_template_lists_known_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "stater", str(tmp_path / "x")]) == 1
    assert (
        "'stater'; choose one of: annotated, cluster, deploy, gpt-oss, gpt-oss-llama-cpp, gpt-oss-vllm, monitoring, postgres, postgres-s3, redis, scale-out, starter"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "x").exists()


def test_folder_that_cannot_be_created_is_one_line_of_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["init", "starter", str(tmp_path / "file" / "x")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["init"], ["init", "starter"]])
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)


def test_unknown_argument_of_command_prints_usage_of_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["list", "config.yaml"])
    printed = capsys.readouterr().err
    assert "usage: llama-stack-responses list [-h] [--config CONFIG]" in printed
    assert printed.endswith("llama-stack-responses list: error: unrecognized arguments: config.yaml\n")


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.startswith("llama-stack-responses ")


@pytest.mark.parametrize("words", [["lst"], ["--x", "lst", "--config", "c.yaml"]])
def test_unknown_command_is_one_sentence_with_the_commands_that_there_are(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("llama-stack-responses: There is no command 'lst': the commands of this installation are")
    assert " list," in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("option", ["new.yaml", "config.yaml"])
def test_import_with_two_configurations_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "old.yaml", "--config", option]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert f"old.yaml and --config {option} both name the configuration" in message
    assert "--from OLD" in message
