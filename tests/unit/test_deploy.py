"""What deploy/ holds fits the schemas of its readers, agrees with itself and with emu, and is pinned."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from emu.telemetry import file_sd
from emu.transport import data_ports

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES_RELEASE = "1.33"
EPHEMERAL_PORTS = range(32_768, 61_000)
"""Linux' default net.ipv4.ip_local_port_range."""
CLUSTERS = ("raycluster", "rayjob")


@cache
def read(name: str) -> Any:
    """A YAML file of deploy/, which must hold one document."""
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def schema(name: str) -> Any:
    return json.loads((DEPLOY / "schema" / f"{name}.schema.json").read_text(encoding="utf-8"))


def cluster_spec(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = read(f"kubernetes/{name}.yaml")["spec"]
    return spec.get("rayClusterSpec", spec)


def groups(name: str) -> list[dict[str, Any]]:
    spec = cluster_spec(name)
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


def containers(name: str) -> list[dict[str, Any]]:
    return [container for group in groups(name) for container in group["template"]["spec"]["containers"]]


def data_range(name: str) -> range:
    (text,) = {one["value"] for container in containers(name) for one in container["env"] if one["name"] == "EMU_DATA_PORTS"}
    found = data_ports({"EMU_DATA_PORTS": text})
    assert found is not None
    return found


def metrics_port(name: str) -> int:
    (port,) = {
        port["containerPort"] for container in containers(name) for port in container["ports"] if port["name"] == "emu-metrics"
    }
    return int(port)


# -- schemas ---------------------------------------------------------------------------------------------


def test_every_file_is_checked() -> None:
    """A new YAML file gets a check here."""
    found = {path.relative_to(DEPLOY).as_posix() for path in DEPLOY.rglob("*.y*ml")}
    ours = {name for name in found if not name.startswith("prometheus/")}
    assert ours == {
        "compose.yaml",
        "ray/cluster.yaml",
        "kubernetes/raycluster.yaml",
        "kubernetes/rayjob.yaml",
        "kubernetes/podmonitor.yaml",
        "kubernetes/networkpolicy.yaml",
    }


def test_the_compose_file_fits_the_specification() -> None:
    """Compose knows every key of it."""
    jsonschema.Draft201909Validator(schema("compose")).validate(read("compose.yaml"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("docker") is None, reason="docker is not installed")
def test_compose_takes_the_file(tmp_path: Path) -> None:
    """``docker compose config``, which needs no daemon, resolves it with EMU_FILE_SD, and without says what to set."""
    if subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=60).returncode:
        pytest.skip("this docker has no compose")
    command = ["docker", "compose", "-f", str(DEPLOY / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "EMU_FILE_SD": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    without = {name: value for name, value in os.environ.items() if name != "EMU_FILE_SD"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=without)
    assert done.returncode != 0 and "set EMU_FILE_SD" in done.stderr


def test_the_cluster_file_fits_rays_schema() -> None:
    """``ray up`` knows every key of it."""
    ray = importlib.util.find_spec("ray")
    assert ray is not None and ray.origin is not None
    rays = json.loads((Path(ray.origin).parent / "autoscaler" / "ray-schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(read("ray/cluster.yaml"), rays)


@pytest.mark.slow
def test_ray_up_takes_the_cluster_file() -> None:
    """What ``ray up`` does with it first, filling in and validating, makes a head and two workers on the hosts that are named."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    written = read("ray/cluster.yaml")
    filled = prepare_config(copy.deepcopy(written))
    validate_config(filled)
    (kind,) = filled["available_node_types"].values()
    assert kind["min_workers"] == kind["max_workers"] == len(written["provider"]["worker_ips"])
    assert filled["head_start_ray_commands"] == written["head_start_ray_commands"]
    with pytest.raises(Exception, match="head_ip"):
        prepare_config({**written, "provider": {"type": "local"}})


@pytest.mark.parametrize("name", [*CLUSTERS, "podmonitor"])
def test_custom_resources_use_known_fields(name: str) -> None:
    """Each field is one that the operator's reference has, with a value of its type."""
    jsonschema.validate(read(f"kubernetes/{name}.yaml"), schema("custom_resources"))


@pytest.mark.parametrize("name", CLUSTERS)
def test_pods_fit_kubernetes_schema(name: str) -> None:
    """The API server knows every field of the pod templates."""
    for group in groups(name):
        kind = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "emu"}, "template": group["template"]}
        kubernetes_validate.validate(kind, KUBERNETES_RELEASE, strict=True)


def test_the_network_policy_fits_kubernetes_schema() -> None:
    """The API server knows every field of it."""
    kubernetes_validate.validate(read("kubernetes/networkpolicy.yaml"), KUBERNETES_RELEASE, strict=True)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian package prometheus)")
def test_prometheus_reads_what_sessions_write(tmp_path: Path) -> None:
    """promtool takes the configuration with a session's file where the compose file mounts it, and refuses a broken one."""
    place = tmp_path / "prometheus"
    shutil.copytree(DEPLOY / "prometheus", place)
    written = file_sd.publish({"n0": "10.0.0.1:25000", "n1": "10.0.0.2:25000"}, "5e55", place=place / "file_sd")
    command = ["promtool", "check", "config", str(place / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    written.write_text('[{"target": ["10.0.0.1:25000"]}]', encoding="utf-8")
    assert subprocess.run(command, capture_output=True, timeout=60).returncode != 0


# -- agreement -------------------------------------------------------------------------------------------


def test_images_are_pinned() -> None:
    """No image floats: each has the version that the rest of the project is made for."""
    images = {name: service["image"].split(":")[1] for name, service in read("compose.yaml")["services"].items()}
    assert all(re.fullmatch(r"v?\d+\.\d+\.\d+", version) for version in images.values())
    dashboards = json.loads((ROOT / "grafana" / "schema" / "dashboard.schema.json").read_text(encoding="utf-8"))
    assert dashboards["$id"] == f"grafana-{images['grafana']}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {container["image"] for name in CLUSTERS for container in containers(name)} == {f"emu:{project['version']}"}


def test_one_ray_everywhere() -> None:
    """The image, the cluster's declared version and what the on-premises hosts install are the same Ray."""
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    setup = " ".join(read("ray/cluster.yaml")["setup_commands"])
    (base,) = re.findall(r"^FROM rayproject/ray:([\d.]+)-py312-cpu$", dockerfile, re.MULTILINE)
    assert {base, *re.findall(r"ray(?:\[default\])?==([\d.]+)", dockerfile + setup)} == {base}
    assert {cluster_spec(name)["rayVersion"] for name in CLUSTERS} == {base}


def test_the_job_runs_on_the_same_cluster() -> None:
    """The RayJob's cluster is the RayCluster's, to the letter."""
    assert cluster_spec("rayjob") == cluster_spec("raycluster")


def test_pods_keep_their_pace() -> None:
    """Each pod has whole CPUs as requests and limits, all known to Ray, a node of its own, and shared memory within its limit."""
    for group in groups("raycluster"):
        template = group["template"]
        pod = template["spec"]
        (container,) = pod["containers"]
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert int(container["resources"]["limits"]["cpu"]) == int(group["rayStartParams"]["num-cpus"])
        (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert apart["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        (volume,) = pod["volumes"]
        assert {"name": volume["name"], "mountPath": "/dev/shm"} in container["volumeMounts"]
        assert volume["emptyDir"]["medium"] == "Memory"
        assert gibibytes(volume["emptyDir"]["sizeLimit"]) < gibibytes(container["resources"]["limits"]["memory"])


def gibibytes(text: str) -> int:
    return int(text.removesuffix("Gi"))


def test_ports_are_apart() -> None:
    """No two listeners of a pod share a port: Ray's, the data plane's, the exporter's and the system's own ranges."""
    data, metrics = data_range("raycluster"), metrics_port("raycluster")
    for group in groups("raycluster"):
        parameters = group["rayStartParams"]
        workers = range(int(parameters["min-worker-port"]), int(parameters["max-worker-port"]) + 1)
        named = [port["containerPort"] for container in group["template"]["spec"]["containers"] for port in container["ports"]]
        ports = [*named, *workers, *data, *EPHEMERAL_PORTS]
        assert len(set(ports)) == len(ports)
        assert metrics in named


def test_the_metrics_port_is_one() -> None:
    """The exporter that the job asks for is at the port that the pods name, the monitor scrapes and the policy lets in."""
    asked = re.search(r"--metrics (\S+)", read("kubernetes/rayjob.yaml")["spec"]["entrypoint"])
    assert asked is not None and file_sd.parse_endpoint(asked[1]) == (file_sd.NODE_ADDRESS, metrics_port("rayjob"))
    monitor = read("kubernetes/podmonitor.yaml")["spec"]
    assert [endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]] == ["emu-metrics"]
    assert all(
        monitor["selector"]["matchLabels"].items() <= group["template"]["metadata"]["labels"].items()
        for group in groups("raycluster")
    )
    allowed = [port["port"] for rule in read("kubernetes/networkpolicy.yaml")["spec"]["ingress"] for port in rule["ports"]]
    assert allowed.count("emu-metrics") == 1


def test_the_policy_opens_the_data_ports_to_emu_alone() -> None:
    """The data range is open as it is set in the pods, to pods of emu and to no others."""
    policy = read("kubernetes/networkpolicy.yaml")["spec"]
    data = data_range("raycluster")
    wanted = {"port": data[0], "endPort": data[-1], "protocol": "TCP"}
    (rule,) = [rule for rule in policy["ingress"] if wanted in rule["ports"]]
    assert [peer["podSelector"] for peer in rule["from"]] == [policy["podSelector"]]
    assert policy["podSelector"]["matchLabels"] == groups("raycluster")[0]["template"]["metadata"]["labels"]


# -- the compose file --------------------------------------------------------------------------------------


def mounts(service: str) -> dict[str, str]:
    """Source by target."""
    found = {}
    for volume in read("compose.yaml")["services"][service]["volumes"]:
        if isinstance(volume, str):
            source, target, *_ = volume.split(":")
            found[target] = source
        else:
            found[volume["target"]] = volume["source"]
    return found


def test_what_is_mounted_is_there() -> None:
    """Each source is a file or folder of the repository, a declared volume, or the directory that the user names."""
    declared = read("compose.yaml")["volumes"]
    for service in ("prometheus", "grafana"):
        for source in mounts(service).values():
            assert source in declared or source.startswith("${EMU_FILE_SD:?") or (DEPLOY / source).exists(), source


def test_prometheus_finds_what_its_configuration_names() -> None:
    """The rules and the file_sd folder are mounted beside prometheus.yml, the folder as a folder."""
    configuration = read("prometheus/prometheus.yml")
    (job,) = configuration["scrape_configs"]
    named = [*configuration["rule_files"], *job["file_sd_configs"][0]["files"]]
    assert {f"/etc/prometheus/{Path(name).parent}" for name in named} <= mounts("prometheus").keys()


def test_grafana_finds_its_dashboards_and_prometheus() -> None:
    """Dashboards are mounted where the provider reads them; the data source's host is Prometheus' address and port."""
    provisioning = ROOT / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "emu.yml").read_text(encoding="utf-8"))["providers"]
    assert mounts("grafana")[provider["options"]["path"]] == "../grafana/dashboards"
    (source,) = yaml.safe_load((provisioning / "datasources" / "emu.yml").read_text(encoding="utf-8"))["datasources"]
    host, port = source["url"].removeprefix("http://").split(":")
    services = read("compose.yaml")["services"]
    assert services["grafana"]["extra_hosts"] == [f"{host}:127.0.0.1"]
    assert f"--web.listen-address=127.0.0.1:{port}" in services["prometheus"]["command"]
    home = Path(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home.parent == Path(provider["options"]["path"]) and (ROOT / "grafana" / "dashboards" / home.name).exists()


def test_both_listen_here_alone_and_are_asked_where_they_listen() -> None:
    """Every address in the file is 127.0.0.1, the two ports differ, and the health checks ask them."""
    services = read("compose.yaml")["services"]
    grafana = services["grafana"]["environment"]
    assert {service["network_mode"] for service in services.values()} == {"host"}
    assert grafana["GF_SERVER_HTTP_ADDR"] == "127.0.0.1" and "0.0.0.0" not in json.dumps(services)
    asked = {
        name: re.findall(r"http://127\.0\.0\.1:(\d+)", " ".join(service["healthcheck"]["test"]))
        for name, service in services.items()
    }
    assert asked == {"prometheus": ["9090"], "grafana": [grafana["GF_SERVER_HTTP_PORT"]]}


# -- words -------------------------------------------------------------------------------------------------


def test_the_readme_names_what_is_there() -> None:
    """Every path of the repository in deploy/README.md exists."""
    named = re.findall(r"\b(?:deploy|tests)/[\w./-]*\w", (DEPLOY / "README.md").read_text(encoding="utf-8"))
    assert named and [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("arguments", [[], ["--clock-offset", "soon", "true"]])
def test_the_two_hosts_say_what_they_want(arguments: list[str]) -> None:
    """What the script cannot use ends it at once, with one line and status 2."""
    done = subprocess.run([DEPLOY / "two_hosts.sh", *arguments], capture_output=True, text=True, timeout=10)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
