"""The files of the template `deploy`, checked by the linters and schemas of their formats."""

import re
import shutil
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml
from compose_spec.models import ComposeSpecification

from tests.support.snippets import blocks

FOLDER: Final = Path(__file__).parents[2] / "templates" / "deploy"
SCRAPES: Final = "docs/guides/operations.md, Traces and metrics, sh 2"
"""The documented settings of the port for Prometheus."""

CHOWN: Final = "docs/guides/deploying.md, Compose, sh"

GRACE: Final = 5.0
"""The default of `flush_seconds`."""

FINISH: Final = 30.0
"""`finish_seconds` in these files."""

type Json = dict[str, Any]


@pytest.fixture(scope="module")
def manifests() -> list[Json]:
    return list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))


def test_hadolint_accepts_the_containerfile() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    checked = subprocess.run([hadolint, FOLDER / "Containerfile"], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_image_has_the_tested_versions_with_hashes_and_no_addresses() -> None:
    text = (FOLDER / "requirements.txt").read_text()
    pins = {line.split()[0] for line in text.splitlines() if "==" in line}
    tested = set((FOLDER.parents[1] / "constraints" / "llama-stack.txt").read_text().splitlines())
    assert pins - tested == set()
    assert {"llama-stack==0.7.3"} < pins
    assert not [pin for pin in pins if pin.startswith(("oci=", "oracledb="))]
    entries = text.replace("\\\n", "").splitlines()
    unhashed = [each for each in entries if not each.startswith("#") and "--hash=sha256:" not in each]
    assert unhashed == []
    assert "://" not in text


def test_containerfile_installs_only_what_has_a_hash_and_the_wheel_beside_it() -> None:
    text = (FOLDER / "Containerfile").read_text().replace("\\\n", "")
    installs = [each.split() for each in re.findall(r"pip (install .*?) &&", text)]
    assert [each[1:] for each in installs] == [
        ["--no-cache-dir", "--no-deps", "--require-hashes", "--requirement", "/build/requirements.txt"],
        ["--no-cache-dir", "--no-deps", "--no-index", "/build/wheels/llama_stack_responses-*.whl"],
    ]


def test_containerfile_does_not_end_as_root() -> None:
    lines = (FOLDER / "Containerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER ")] == ["USER 10001"]
    assert "STOPSIGNAL SIGTERM" in lines
    assert f"FINISH_SECONDS={FINISH:g}" in " ".join(lines).split()
    # Whatever mode the file has at the one who builds.
    assert "COPY --chmod=0644 config.yaml /etc/responses/config.yaml" in lines


def test_kubernetes_schemas_accept_the_manifests(manifests: list[Json]) -> None:
    assert [each["kind"] for each in manifests] == ["Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"]
    for each in manifests:
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)


def test_pods_are_unprivileged_and_probed_on_the_readiness_route(manifests: list[Json]) -> None:
    pod = manifests[0]["spec"]["template"]["spec"]
    [server] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert server["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert server["readinessProbe"]["httpGet"]["path"] == "/v1/ready"
    assert server["livenessProbe"]["httpGet"]["path"] == "/v1/health"
    [before_stop] = [int(word) for word in server["lifecycle"]["preStop"]["exec"]["command"] if word.isdigit()]
    assert pod["terminationGracePeriodSeconds"] > before_stop + FINISH + GRACE


def test_pods_have_bounds_on_memory_and_files(manifests: list[Json]) -> None:
    pod = manifests[0]["spec"]["template"]["spec"]
    [server] = pod["containers"]
    limits = {name: quantity(size) for name, size in server["resources"]["limits"].items()}
    assert limits.keys() == {"memory", "ephemeral-storage"}
    folders = [each["emptyDir"]["sizeLimit"] for each in pod["volumes"] if "emptyDir" in each]
    assert sum(map(quantity, folders)) < limits["ephemeral-storage"]
    writable = {each["mountPath"] for each in server["volumeMounts"] if not each.get("readOnly")}
    assert writable == {"/state", "/tmp"}


def quantity(text: str) -> int:
    """Return a Kubernetes quantity in bytes."""
    return int(text[:-2]) * {"Mi": 2**20, "Gi": 2**30}[text[-2:]]


def test_network_policy_admits_clients_to_the_api_and_only_prometheus_to_the_metrics(manifests: list[Json]) -> None:
    deployment, _, budget, policy = manifests
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"] == budget["spec"]["selector"] == {"matchLabels": labels}
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    rules = {port["port"]: rule.get("from") for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert rules.keys() == {"http", "metrics"}
    assert rules["http"] is None
    assert rules["metrics"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


def test_compose_schema_accepts_the_compose_file() -> None:
    text = (FOLDER / "compose.yaml").read_text()
    ComposeSpecification.model_validate(yaml.safe_load(text))
    with pytest.raises(ValueError, match="validation error"):
        ComposeSpecification.model_validate(yaml.safe_load(text.replace("read_only: true", "read_only: [1]")))


def test_compose_services_are_unprivileged_and_probed() -> None:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    config = (FOLDER.parent / "scale-out" / "config.yaml").read_text()
    assert {name: each["user"] for name, each in compose["services"].items()} == {
        "server-1": "10001",
        "server-2": "10001",
        "redis": "999",
    }
    for each in compose["services"].values():
        assert each["read_only"]
        assert each["cap_drop"] == ["ALL"]
        assert each["security_opt"] == ["no-new-privileges:true"]
        assert each["pids_limit"] > 0
    for name in ("server-1", "server-2"):
        server = compose["services"][name]
        assert "/v1/ready" in server["healthcheck"]["test"][-1]
        assert server["mem_limit"] == "4g"
        assert server["tmpfs"] == ["/tmp:size=256m"]
        assert float(server["stop_grace_period"].removesuffix("s")) > FINISH + GRACE
        assert server["environment"]["RESPONSES_SECRET"] == "${RESPONSES_SECRET:?set it in .env}"
        # Those of the configuration without a value in `environment`.
        assert server["env_file"] == ".env"
        for optional in ("INFERENCE_API_KEY", "RESPONSES_SECRET_2"):
            assert optional not in server["environment"]
            assert f"${{env.{optional}:=}}" in config


def test_documented_chown_of_the_redis_volume_matches_the_compose_file() -> None:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    redis = compose["services"]["redis"]
    [volume] = redis["volumes"]
    assert blocks()[CHOWN].text.split() == [
        *("podman", "run", "--rm", "--user", "0", "--volume", f"{compose['name']}_{volume}", redis["image"]),
        *("chown", "-R", redis["user"], volume.partition(":")[2]),
    ]


UNITS: Final = ("responses.service", "responses@.service")


@pytest.mark.parametrize("name", UNITS)
def test_systemd_unit_is_unprivileged_and_ends_gracefully(name: str) -> None:
    unit = RawConfigParser(strict=False, delimiters="=", comment_prefixes="#")
    unit.read(FOLDER / name)
    service = unit["Service"]
    assert (service["DynamicUser"], service["ProtectSystem"]) == ("yes", "strict")
    # With `control-group`, the processes of a server would get SIGTERM twice, which ends their last responses.
    assert service["KillMode"] == "mixed"
    assert float(service["TimeoutStopSec"]) > FINISH + GRACE
    assert f"FINISH_SECONDS={FINISH:g}" in service["Environment"].split()
    assert "ExecReload" not in service
    # For `on-failure`, a server that SIGHUP ended has not failed.
    assert service["Restart"] == "always"
    # Two for each stream.
    assert int(service["LimitNOFILE"]) >= 2 * 10_000


def test_unit_of_an_instance_differs_only_in_what_two_servers_may_not_share() -> None:
    single, instance = ((FOLDER / name).read_text().partition("\n[Unit]\n")[2] for name in UNITS)
    added = set(instance.split()) - set(single.split())
    removed = set(single.split()) - set(instance.split())
    assert removed == {"(llama-stack-responses)", "OTEL_EXPORTER_PROMETHEUS_PORT=9464"}
    settings = {each for each in added if "=" in each and each[0].isupper()}
    assert settings == {
        *("OTEL_EXPORTER_PROMETHEUS_PORT=1%i", "LLAMA_STACK_PORT=%i", "OGX_PORT=%i"),
        *("User=responses", "EnvironmentFile=-/etc/responses/%i.environment"),
    }
    servers = re.findall(r"server 127.0.0.1:(\d+) ", (FOLDER.parent / "scale-out" / "nginx.conf").read_text())
    assert " ".join(f"responses@{port}" for port in servers) in (FOLDER / "responses@.service").read_text()


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd")
def test_systemd_accepts_the_unit(name: str, tmp_path: Path) -> None:
    text = (FOLDER / name).read_text().replace("/opt/responses/bin/llama", "/bin/true")
    unit = tmp_path / name
    unit.write_text(text)
    checked = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    # In tenths: 100 is a unit without any restriction.
    rated = ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", str(unit)]
    exposed = subprocess.run(rated, capture_output=True, text=True, check=False)
    assert exposed.returncode == 0, exposed.stdout


def test_servers_have_the_metrics_port_of_the_documentation(manifests: list[Json]) -> None:
    container = (FOLDER / "Containerfile").read_text()
    unit = (FOLDER / UNITS[0]).read_text()
    documented = re.findall(r"OTEL_\w+=\S+", blocks()[SCRAPES].text)
    assert len(documented) == 3
    assert set(documented) <= set(unit.split())
    # Another container collects, from the container's own address.
    inside = {each.replace("HOST=127.0.0.1", "HOST=0.0.0.0") for each in documented}
    assert inside <= set(container.split())
    assert 'CMD ["llama", "stack", "run", "/etc/responses/config.yaml"]' in container
    assert "ExecStart=/opt/responses/bin/llama stack run" in unit
    [server] = manifests[0]["spec"]["template"]["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in server["ports"]}
    assert ports == {"http": 8321, "metrics": 9464}
    assert [each["name"] for each in manifests[1]["spec"]["ports"]] == ["http"]
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    published = [port for each in services.values() for port in each.get("ports", [])]
    assert [port.split(":")[0] for port in published] == ["127.0.0.1"] * 4
    assert sorted(port.split(":")[-1] for port in published) == ["8321", "8321", "9464", "9464"]
