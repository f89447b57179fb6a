"""What deploy/ ships: scripts, certificates, image, compose file, manifests."""

import contextlib
import copy
import datetime
import fnmatch
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from dask.utils import parse_bytes

from tests.clusters import wait_until

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
SCRIPTS = sorted([*DEPLOY.rglob("*.sh"), *DEPLOY.rglob("*.sbatch")])
KUBERNETES = DEPLOY / "kubernetes"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMAGE = f"spore-dask:{PROJECT['version']}"
HEADROOM = parse_bytes("512MiB")  # of a container beyond its worker's limit, as README.md says
BIN = Path(sys.executable).parent


def run(*command, **options):
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=300, **options
    )


GIVEN = {"SPORE_UID": "1000", "SPORE_GID": "1000", "SPORE_ACCESS_KEY": "a", "SPORE_SECRET_KEY": "b"}


@pytest.fixture(scope="module")
def compose():
    text = (DEPLOY / "compose.yaml").read_text()
    return yaml.safe_load(re.sub(r"\$\{(\w+):\?[^}]+\}", lambda found: GIVEN[found[1]], text))


# Scripts


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_sound(path):
    assert os.access(path, os.X_OK)
    shell = path.read_text().splitlines()[0].split()[-1].rpartition("/")[2]
    assert run(shell, "-n", path).returncode == 0
    shellcheck = shutil.which("shellcheck", path=f"{BIN}:{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    found = run(shellcheck, path)
    assert found.returncode == 0, found.stdout


def test_the_entrypoint_knows_its_roles():
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    expected = {
        ("worker", "--help"): "dask worker",
        ("fit", "--help"): "python -m pipelines fit",
        ("spore-dask", "--version"): PROJECT["version"],
    }
    for command, text in expected.items():
        found = run("sh", DEPLOY / "entrypoint.sh", *command, env=env)
        assert found.returncode == 0, found.stderr
        assert text in found.stdout


# Certificates


def settings_of(text):
    """The variables that the script prints."""
    return dict(re.findall(r"^export (\w+)=(.*)$", text, re.MULTILINE))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls") / "files"
    made = run(DEPLOY / "tls/make-certificates.sh", "-d", 30, folder, "scheduler.test", "10.1.2.3")
    assert made.returncode == 0, made.stderr
    return folder, settings_of(made.stdout)


def test_certificates_are_private_and_say_whom_they_stand_for(certificates):
    folder, settings = certificates
    names = {
        f"{part}.{end}"
        for part in ("ca", "scheduler", "worker", "client")
        for end in ("pem", "key")
    }
    assert {path.name for path in folder.iterdir()} == names
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.glob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for part in ("scheduler", "worker", "client"):
        facts = ssl._ssl._test_decode_cert(str(folder / f"{part}.pem"))
        found = set(facts["subjectAltName"])
        assert {
            ("DNS", "localhost"),
            ("DNS", "scheduler.test"),
            ("IP Address", "10.1.2.3"),
        } <= found
        ends = datetime.datetime.fromtimestamp(
            ssl.cert_time_to_seconds(facts["notAfter"]), datetime.UTC
        )
        days = (ends - datetime.datetime.now(datetime.UTC)).total_seconds() / 86400
        assert 29 < days <= 30
    files = [value for name, value in settings.items() if name.endswith(("FILE", "CERT", "KEY"))]
    assert len(files) == 7
    assert all(Path(file).is_file() for file in files)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ((), 2, "usage"),
        (("-d", "soon", "new"), 2, "DAYS is 'soon'"),
        (("-a", "dsa", "new"), 2, "'dsa'"),
        (("new", "no name"), 2, "'no name'"),
    ],
)
def test_certificates_that_cannot_be_made_leave_nothing(tmp_path, options, code, text):
    made = run(DEPLOY / "tls/make-certificates.sh", *options, cwd=tmp_path)
    assert made.returncode == code
    assert text in made.stderr
    assert not list(tmp_path.rglob("*.key"))


def test_certificates_are_not_overwritten(certificates):
    folder, _ = certificates
    before = {path: path.read_bytes() for path in folder.iterdir()}
    made = run(DEPLOY / "tls/make-certificates.sh", folder)
    assert made.returncode == 1
    assert "exists" in made.stderr
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_rsa_keys(tmp_path):
    made = run(DEPLOY / "tls/make-certificates.sh", "-a", "rsa", tmp_path / "files")
    assert made.returncode == 0, made.stderr
    shown = run("openssl", "x509", "-in", tmp_path / "files/client.pem", "-noout", "-text")
    assert "3072 bit" in shown.stdout


@pytest.fixture
def tls_cluster(certificates, compose, tmp_path):
    """Scheduler and worker as compose.yaml starts them, but here: their address, and their health.

    They have the files and the settings that the script for certificates gives.
    """
    folder, settings = certificates
    env = {**os.environ, **settings, "DASK_CONFIG": str(DEPLOY / "dask.yaml")}
    env |= {"PYTHONPATH": str(ROOT), "PATH": f"{BIN}:{os.environ['PATH']}"}
    ports = {"8787": str(free_port()), "8790": str(free_port())}
    file = tmp_path / "scheduler.json"
    here = {
        "8786": "0",
        ":8787": f"127.0.0.1:{ports['8787']}",
        "tls://scheduler:8786": f"--scheduler-file={file}",
        "--memory-limit=4GiB": "--memory-limit=1GiB",
        "--dashboard-address=:8790": f"--dashboard-address=127.0.0.1:{ports['8790']}",
        "--local-directory=/scratch": f"--local-directory={tmp_path}",
    }
    processes = []
    try:
        for role, more in (("scheduler", [f"--scheduler-file={file}"]), ("worker", [])):
            words = [here.get(word, word) for word in compose["services"][role]["command"]]
            command = ["sh", DEPLOY / "entrypoint.sh", *words, "--host=127.0.0.1", *more]
            with (tmp_path / f"{role}.log").open("w") as log:
                processes.append(
                    subprocess.Popen(
                        command,
                        env=env,
                        stdout=log,
                        stderr=log,
                        cwd=tmp_path,
                        start_new_session=True,
                    )
                )
        yield file, folder, ports
    finally:
        for process in reversed(processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def tls_client(address, folder):
    import distributed

    files = {
        "tls_ca_file": "ca.pem",
        "tls_client_cert": "client.pem",
        "tls_client_key": "client.key",
    }
    paths = {name: str(folder / file) for name, file in files.items()}
    security = distributed.Security(require_encryption=True, **paths)
    return distributed.Client(address, security=security, set_as_default=False, timeout=60)


def address_in(file):
    """Return the address in a scheduler's file, as soon as it is all there."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return json.loads(file.read_text())["address"]
    return None


def test_a_cluster_over_tls_serves_those_who_have_a_certificate(tls_cluster, compose):
    import dask
    import distributed

    address_file, folder, ports = tls_cluster
    address = wait_until(lambda: address_in(address_file))
    assert address.startswith("tls://127.0.0.1:")
    with tls_client(address, folder) as client:
        client.wait_for_workers(1, timeout=120)
        assert client.submit(sum, [1, 2, 3]).result(120) == 6
        (worker,) = client.scheduler_info()["workers"].values()
        assert (worker["nthreads"], worker["memory_limit"]) == (1, parse_bytes("1GiB"))
        name = "distributed.scheduler.allowed-failures"
        assert client.run_on_scheduler(dask.config.get, name) == 2, "the settings have arrived"
        for role, port in (("scheduler", "8787"), ("worker", "8790")):
            check, *command = compose["services"][role]["healthcheck"]["test"]
            assert (check, command[0]) == ("CMD", "python")
            asked = [word.replace(port, ports[port]) for word in command[1:]]
            wait_until(lambda: run(sys.executable, *asked).returncode == 0)  # noqa: B023
    with pytest.raises(OSError, match=r"Timed out|in handshake|closed"):
        distributed.Client(address.replace("tls:", "tcp:"), set_as_default=False, timeout=3)


# Image


@pytest.fixture(scope="module")
def dockerfile():
    parse = pytest.importorskip("dockerfile_parse").DockerfileParser
    return parse(path=str(DEPLOY / "Dockerfile"), env_replace=True, fileobj=None)


def copies(dockerfile):
    """What the image takes from the project: source, in words of the file."""
    for step in dockerfile.structure:
        words = [word for word in step["value"].split() if not word.startswith("--chmod")]
        if step["instruction"] in ("COPY", "ADD") and not words[0].startswith("--from"):
            yield from words[:-1]


def ignored(path):
    """Whether .dockerignore keeps a path of the project from the builder: the last rule wins."""
    verdict = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        rule = line.strip()
        if rule and not rule.startswith("#"):
            pattern = rule.removeprefix("!")
            parts = [path, *(str(above) for above in Path(path).parents if str(above) != ".")]
            if any(fnmatch.fnmatch(part, pattern.removeprefix("**/")) for part in parts):
                verdict = not rule.startswith("!")
    return verdict


def test_the_image_is_pinned_and_has_no_root(dockerfile):
    assert dockerfile.is_multistage
    base = re.search(r"^ARG BASE=(\S+)$", dockerfile.content, re.MULTILINE)[1]
    assert re.fullmatch(r"python:3\.12\.\d+-slim-\w+", base)
    froms = [step["value"] for step in dockerfile.structure if step["instruction"] == "FROM"]
    assert froms == ["${BASE} AS build", "${BASE}"]
    users = [step["value"] for step in dockerfile.structure if step["instruction"] == "USER"]
    assert len(users) == 1
    assert int(users[0].split(":")[0]) > 0
    last = [step["instruction"] for step in dockerfile.structure]
    assert last.index("USER") > max(i for i, name in enumerate(last) if name in ("RUN", "COPY"))
    assert not re.search("password|secret|token|access_key", dockerfile.content, re.IGNORECASE)


def test_what_the_image_copies_is_there_and_nothing_else_reaches_the_builder(dockerfile):
    sources = set(copies(dockerfile))
    assert {"spore_dask", "pipelines", "deploy/constraints.txt"} <= sources
    for source in sources:
        assert (ROOT / source).exists()
        assert not ignored(source), source
    for secret in ("deploy/.env", "deploy/tls/files/ca.key", ".git", "tests/conftest.py", "x.env"):
        assert ignored(secret), secret
    assert ignored("spore_dask/kernels/__pycache__/cells.nbi")


def test_the_image_installs_extras_that_there_are(dockerfile):
    extras = {
        name
        for names in re.findall(r"EXTRAS=([\w,]+)", dockerfile.content)
        for name in names.split(",")
    }
    renewed = re.search(r"source\[([\w,]+)\]", (DEPLOY / "renew-constraints.sh").read_text())
    assert extras <= set(renewed[1].split(",")) <= set(PROJECT["optional-dependencies"])


def test_versions_are_pinned_and_allowed_by_the_project():
    from packaging.requirements import Requirement

    lines = [
        line for line in (DEPLOY / "constraints.txt").read_text().splitlines() if line[0] != "#"
    ]
    pins = {
        name.lower().replace("_", "-"): version
        for name, version in (line.split("==") for line in lines)
    }
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], "setuptools>=77"]
    for extra in ("formats", "s3", "slurm", "kubernetes"):
        wanted += extras[extra]
    for text in wanted:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[requirement.name]), text


def test_dask_knows_every_setting():
    import dask
    import distributed  # noqa: F401, brings its defaults

    def leaves(found, within=""):
        for name, value in found.items():
            if isinstance(value, dict) and name != "pre-spawn-environ":
                yield from leaves(value, f"{within}{name}.")
            else:
                yield within + name, value

    for name, _ in leaves(yaml.safe_load((DEPLOY / "dask.yaml").read_text())):
        assert dask.config.get(name, default=KeyError) is not KeyError, name


# Compose file


def strictly_parsed(document):
    parsed = pytest.importorskip("compose_spec").PyCompose.from_yaml(yaml.safe_dump(document))
    parsed.validate()
    return parsed


def test_the_compose_file_keeps_to_the_specification(compose):
    assert set(strictly_parsed(compose).service_names()) == {"scheduler", "worker", "job", "store"}
    for path, value in {
        ("scheduler", "mem_limitt"): "2g",
        ("worker", "mem_limit"): "much",
        ("store", "restart"): "sometimes",
    }.items():
        wrong = copy.deepcopy(compose)
        wrong["services"][path[0]][path[1]] = value
        with pytest.raises(ValueError, match=re.escape(path[1])):
            strictly_parsed(wrong)


def test_the_compose_file_has_no_passwords_and_asks_for_those_it_needs():
    text = (DEPLOY / "compose.yaml").read_text()
    assert set(re.findall(r"\$\{?(\w+)", text)) == set(GIVEN)
    assert not re.findall(r"\$\{\w+(?!:\?|\w)", text), "a variable that may be missing"
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "ROOT_ACCESS_KEY",
        "ROOT_SECRET_KEY",
    ):
        assert set(re.findall(rf"^ *{name}: (.)", text, re.MULTILINE)) == {"$"}
    example = (DEPLOY / "env.example").read_text().splitlines()
    assert {line for line in example if not line.startswith("#")} == {f"{name}=" for name in GIVEN}


def test_containers_of_compose_are_confined(compose):
    for name, service in compose["services"].items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name
        assert service["user"] == "1000:1000"
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        image, _, tag = service["image"].rpartition(":")
        assert image
        assert re.search(r"\d+\.\d+\.\d+", tag), service["image"]
        for other in service.get("depends_on", {}).items():
            needed, how = other
            needs_health = how["condition"] == "service_healthy"
            assert "healthcheck" in compose["services"][needed] or not needs_health
    ours = {n: s["image"] for n, s in compose["services"].items() if n != "store"}
    assert set(ours.values()) == {IMAGE}


def test_compose_mounts_what_is_there_or_what_the_script_makes(compose, certificates):
    made = {path.name for path in certificates[0].iterdir()}
    for name, service in compose["services"].items():
        targets = set()
        for volume in service["volumes"]:
            source, target, *_ = volume.split(":")
            targets.add(target)
            path = Path(source)
            if path.parent == Path("tls/files"):
                assert path.name in made
                assert path.stem in ("ca", {"job": "client"}.get(name, name)), "another's key"
                assert path.name != "ca.key"
            elif path != Path("data"):
                assert (DEPLOY / path).is_file()
        tls = {v for n, v in service["environment"].items() if "__TLS__" in n}
        assert tls <= targets


def option(arguments, name):
    """The value of an option in a command line."""
    (value,) = (a.partition("=")[2] for a in arguments if a.startswith(f"--{name}="))
    return value


def kibi(size):
    """Bytes of a size as containers give it, where m and g are powers of 1024."""
    return parse_bytes(re.sub("[iI]?[bB]?$", "iB", size, count=1))


def test_memory_of_compose(compose):
    services, job = compose["services"], yaml.safe_load((DEPLOY / "compose/fit.yaml").read_text())
    limit = parse_bytes(option(services["worker"]["command"], "memory-limit"))
    assert option(services["worker"]["command"], "nthreads") == "1"
    assert parse_bytes(job["memory_limit"]) == limit
    for name in ("worker", "job"):
        sizes = re.findall(r"size=(\w+)", " ".join(services[name]["tmpfs"]))
        held = sum(kibi(size) for size in sizes)
        assert kibi(services[name]["mem_limit"]) >= limit + HEADROOM + held


# Kubernetes


def manifests(name):
    return list(yaml.safe_load_all((KUBERNETES / name).read_text()))


MANIFESTS = sorted(path.name for path in KUBERNETES.glob("*.yaml"))
DASK = {"DaskCluster": "cluster.yaml", "DaskJob": "job.yaml"}


def crd_schema(kind):
    """The operator's own schema of a kind, made strict: what it does not name is refused."""
    found = importlib.util.find_spec("dask_kubernetes")
    if found is None:
        pytest.skip("dask-kubernetes is not installed")
    folder = Path(found.submodule_search_locations[0], "operator/deployment/helm")
    path = folder / "dask-kubernetes-operator/crds" / f"{kind.lower()}.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    version = yaml.load(path.read_text(), loader)["spec"]["versions"][0]
    assert version["name"] == "v1"
    schema = strict(version["schema"]["openAPIV3Schema"])
    anything = {"apiVersion": {}, "kind": {}, "metadata": {}}
    schema["properties"] |= anything
    return schema


def strict(schema):
    """A JSON schema for a schema of Kubernetes."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(value) for name, value in schema.items()}
    if isinstance(schema.get("x-kubernetes-int-or-string"), bool):
        made.pop("type", None)
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        made.setdefault("additionalProperties", False)
    return made


@pytest.mark.parametrize("kind", DASK)
def test_resources_of_dask_keep_to_the_schemas_of_the_operator(kind):
    jsonschema = pytest.importorskip("jsonschema")
    (document,) = manifests(DASK[kind])
    assert (document["apiVersion"], document["kind"]) == ("kubernetes.dask.org/v1", kind)
    check = jsonschema.Draft202012Validator(crd_schema(kind))
    assert [f"{e.json_path}: {e.message}" for e in check.iter_errors(document)] == []
    spec = document["spec"] if kind == "DaskCluster" else document["spec"]["cluster"]["spec"]
    for change in (
        lambda: spec["worker"].update(replica=3),
        lambda: spec["worker"]["spec"]["containers"][0].update(volumeMount=[]),
        lambda: spec["worker"].update(replicas="four"),
        lambda: spec["scheduler"].pop("service"),
    ):
        before = copy.deepcopy(spec)
        change()
        assert list(check.iter_errors(document))
        spec.clear()
        spec.update(before)


def misfits(value, kind, path=""):
    """What in a value is not as Kubernetes' own client describes a kind."""
    models = importlib.import_module("kubernetes.client.models")
    if kind.lower().startswith("list["):
        if not isinstance(value, list):
            return [f"{path}: no list"]
        return [m for i, v in enumerate(value) for m in misfits(v, kind[5:-1], f"{path}[{i}]")]
    if kind.lower().startswith("dict"):
        inner = kind[5:-1].split(",")[1].strip()
        return [m for n, v in value.items() for m in misfits(v, inner, f"{path}.{n}")]
    plain = {"str": str, "int": int, "bool": bool, "object": object, "datetime": str}
    if kind in plain:
        fits = isinstance(value, plain[kind]) and (kind != "int" or not isinstance(value, bool))
        return [] if fits else [f"{path}: {value!r} is no {kind}"]
    model = getattr(models, kind)
    names = {outer: inner for inner, outer in model.attribute_map.items()}
    found = [f"{path}: no field {name!r}" for name in value if name not in names]
    for name, each in value.items():
        if name in names:
            found += misfits(each, model.openapi_types[names[name]], f"{path}.{name}")
    return found


CORE = {
    "Namespace": "V1Namespace",
    "ConfigMap": "V1ConfigMap",
    "CronJob": "V1CronJob",
    "NetworkPolicy": "V1NetworkPolicy",
}


@pytest.mark.parametrize("name", [name for name in MANIFESTS if name not in DASK.values()])
def test_resources_of_kubernetes_have_known_fields_only(name):
    pytest.importorskip("kubernetes")
    for document in manifests(name):
        assert misfits(document, CORE[document["kind"]]) == []
        document["metadata"]["nmae"] = "x"
        assert misfits(document, CORE[document["kind"]]) == [".metadata: no field 'nmae'"]


def pods():
    """Every pod that the manifests ask for, by role."""
    (cluster,), (job,), (cron,) = (
        manifests("cluster.yaml"),
        manifests("job.yaml"),
        manifests("cronjob.yaml"),
    )
    for spec in (cluster["spec"], job["spec"]["cluster"]["spec"]):
        yield "scheduler", spec["scheduler"]["spec"]
        yield "worker", spec["worker"]["spec"]
    yield "client", job["spec"]["job"]["spec"]
    yield "client", cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def test_pods_are_confined():
    for role, pod in pods():
        (container,) = pod["containers"]
        assert container["image"] == IMAGE
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] > 0
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert mounts.keys() == volumes.keys()
        assert mounts["tmp"] == "/tmp"
        assert "emptyDir" in volumes["tmp"]
        assert volumes["tls"]["secret"]["secretName"] == f"spore-tls-{role}"
        env = {entry["name"]: entry["value"] for entry in container["env"]}
        assert env["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] == "true"
        assert env[f"DASK_DISTRIBUTED__COMM__TLS__{role.upper()}__KEY"] == "/tls/tls.key"
        if role != "scheduler":  # which has no business with the data
            assert container["envFrom"] == [{"secretRef": {"name": "spore-store"}}]


def test_memory_of_pods():
    jobs = [yaml.safe_load(text) for text in manifests("job-config.yaml")[0]["data"].values()]
    (limit,) = {parse_bytes(job["memory_limit"]) for job in jobs}
    for role, pod in pods():
        (container,) = pod["containers"]
        memory = container["resources"]["limits"]["memory"]
        assert container["resources"]["requests"]["memory"] == memory, "a pod that may be evicted"
        if role == "worker":
            assert option(container["args"], "nthreads") == "1"
            assert parse_bytes(option(container["args"], "memory-limit")) == limit
        if role != "scheduler":
            assert kibi(memory) == limit + HEADROOM


def test_addresses_in_kubernetes_are_those_of_the_services():
    (cluster,), (job,) = manifests("cluster.yaml"), manifests("job.yaml")
    data = manifests("job-config.yaml")[0]["data"]
    for document, spec, file in (
        (cluster, cluster["spec"], "nightly.yaml"),
        (job, job["spec"]["cluster"]["spec"], "fit.yaml"),
    ):
        name, space = document["metadata"]["name"], document["metadata"]["namespace"]
        address = (
            f"tls://{name}-scheduler.{space}.svc.cluster.local:8786"  # as the operator names it
        )
        assert yaml.safe_load(data[file])["cluster"]["address"] == address
        (worker,) = spec["worker"]["spec"]["containers"]
        env = {entry["name"]: entry["value"] for entry in worker["env"]}
        assert env["DASK_SCHEDULER_ADDRESS"] == address
        assert spec["scheduler"]["service"]["selector"]["dask.org/cluster-name"] == name
    assert {d["metadata"].get("namespace", "spore") for n in MANIFESTS for d in manifests(n)} == {
        "spore"
    }


def test_nights_do_not_overlap_and_hopeless_jobs_are_not_tried_again():
    from pipelines.jobs.commands import JOB_EXIT_CODES

    spec = manifests("cronjob.yaml")[0]["spec"]
    assert spec["concurrencyPolicy"] == "Forbid"
    job = spec["jobTemplate"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    assert job["template"]["spec"]["restartPolicy"] == "Never", "which podFailurePolicy needs"
    rules = {rule["action"]: rule for rule in job["podFailurePolicy"]["rules"]}
    hopeless = rules["FailJob"]["onExitCodes"]
    assert hopeless["containerName"] == container["name"]
    may_pass = {0, 5, 6, 7, *(code for code in JOB_EXIT_CODES if code > 128)}
    assert set(hopeless["values"]) == set(JOB_EXIT_CODES) - may_pass
    latest = job["activeDeadlineSeconds"] + spec["startingDeadlineSeconds"]
    minute, hour = map(int, spec["schedule"].split()[:2])
    assert hour * 3600 + minute * 60 + latest <= 24 * 3600, "a try would be of another day"
    labels = job["template"]["metadata"]["labels"]
    assert labels.get("dask.org/component") is None, "the operator would take it for its own"
    allowed = [p for p in manifests("network.yaml") if p["metadata"]["name"] == "spore-scheduler"]
    selectors = [each.get("podSelector", {}) for each in allowed[0]["spec"]["ingress"][0]["from"]]
    assert any(
        selector.get("matchLabels", {"": None}).items() <= labels.items() for selector in selectors
    )


# Jobs


def shipped_jobs():
    """Every job file in deploy/: the command that it is for, and its text."""
    yield "fit", (DEPLOY / "slurm/job.yaml").read_text()
    yield "refresh", (DEPLOY / "slurm/refresh.yaml").read_text()
    yield "fit", (DEPLOY / "compose/fit.yaml").read_text()
    data = manifests("job-config.yaml")[0]["data"]
    (cron,) = manifests("cronjob.yaml")
    drivers = (
        manifests("job.yaml")[0]["spec"]["job"],
        cron["spec"]["jobTemplate"]["spec"]["template"],
    )
    for driver in drivers:
        command, path = driver["spec"]["containers"][0]["args"]
        yield command, data.pop(path.removeprefix("/job/"))
    assert not data


def test_shipped_jobs_are_jobs(certificates, tmp_path):
    from pipelines.jobs.documents import read_job

    folder, _ = certificates
    names = {"/tls/ca.crt": "ca.pem", "/tls/tls.crt": "client.pem", "/tls/tls.key": "client.key"}
    commands = []
    for command, text in shipped_jobs():
        for name, file in names.items():
            text = text.replace(name, str(folder / file))
        path = tmp_path / "job.yaml"
        path.write_text(text.replace("/tls/", f"{folder}/"))
        job = read_job(str(path), command, "2026-11-16")
        assert job.cluster["kind"] in ("slurm", "address")
        assert job.memory_limit
        assert (command == "refresh") == ("2026-11-16" in job.input)
        commands.append(command)
    assert commands.count("refresh") == 2


def test_jobs_in_pods_wait_for_pods_that_are_still_to_start():
    for text in manifests("job-config.yaml")[0]["data"].values():
        assert yaml.safe_load(text)["cluster"]["wait"] >= 600


@pytest.mark.parametrize(
    ("file", "script"), [("job.yaml", "fit.sbatch"), ("refresh.yaml", "scrontab")]
)
def test_memory_of_slurm_jobs(file, script):
    job = yaml.safe_load((DEPLOY / "slurm" / file).read_text())
    limit = parse_bytes(job["cluster"]["memory"])
    assert parse_bytes(job["memory_limit"]) == limit
    assert kibi(job["cluster"]["job_mem"]) == limit + HEADROOM
    text = (DEPLOY / "slurm" / script).read_text()
    (booked,) = re.findall(r"^#(?:SBATCH|SCRON) --mem=(\S+)$", text, re.MULTILINE)
    assert kibi(booked) == limit + HEADROOM, "of the driver"


@pytest.mark.parametrize("date", [None, "2026-11-16"])
def test_the_batch_script_passes_the_date_on(date, tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    python.chmod(0o755)
    (tmp_path / "job.yaml").touch()
    env = {**os.environ, "PYTHON": str(python), "COMMAND": "refresh"} | (
        {"DATE": date} if date else {}
    )
    found = run(DEPLOY / "slurm/fit.sbatch", env=env, cwd=tmp_path)
    expected = ["-m", "pipelines", "refresh", "job.yaml", *(["--date", date] if date else [])]
    assert found.stdout.split("|")[:-1] == expected, found.stderr


def test_scrontab_asks_for_what_the_batch_script_asks_for():
    script = (DEPLOY / "slurm/fit.sbatch").read_text()
    lines = (DEPLOY / "slurm/scrontab").read_text().splitlines()
    asked = {
        kind: dict(re.findall(rf"^#{kind} --([\w-]+)=(\S+)$", text, re.MULTILINE))
        for kind, text in (("SBATCH", script), ("SCRON", "\n".join(lines)))
    }
    # Another job; cron starts no second one; a log has no folder of its own.
    differ = {"job-name", "dependency", "output"}
    assert {n: v for n, v in asked["SBATCH"].items() if n not in differ} == {
        n: v for n, v in asked["SCRON"].items() if n not in differ
    }
    (entry,) = (line for line in lines if line and not line.startswith("#"))
    fields = entry.split()
    assert all(re.fullmatch(r"[\d*,/-]+", field) for field in fields[:5])
    assert fields[5] == "env"
    given = dict(word.split("=", 1) for word in fields[6:-1])
    assert given.keys() == {"COMMAND", "JOB", "SPORE", "PYTHON"}
    assert given["COMMAND"] == "refresh"
    assert (DEPLOY / "slurm" / Path(given["JOB"]).name).is_file()
    assert all(f"${{{name}:-" in script for name in given)
    assert fields[-1] == given["SPORE"] + "/deploy/slurm/fit.sbatch"
