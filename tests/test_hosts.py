"""Clusters as users have them: hosts, TLS between them, and schedulers that go and come back.

A network namespace stands for a host: the scheduler and each worker have one of their own, with a
cable (a veth pair) to a bridge that the driver is plugged into as well.
"""

import dataclasses
import datetime
import ipaddress
import itertools
import shutil
import subprocess
import threading
import uuid

import dask
import distributed  # noqa: F401  (its defaults come before what a test sets)
import numpy as np
import pytest
import zarr

import spore_dask
from spore_dask.cli.running import exit_code
from spore_dask.engine import NoSchedulerError, WorkerLostError
from tests import paper
from tests.clusters import Processes, wait_until

QUICK = {
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "10s",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "20s",
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "15s",
}
"""What has a cut cable noticed within seconds, and a process that is only slow not."""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(c, 0.4, (1500, 2)) for c in ((0, 0), (4, 0), (0, 4))])
    path = tmp_path_factory.mktemp("data") / "x.zarr"
    zarr.create_array(path, shape=rows.shape, chunks=(500, 2), dtype="f8")[:] = rows
    return path


@pytest.fixture(scope="module")
def labels(source):
    """What every fit must come to."""
    run = paper.fit(source, source.with_suffix(".here"), n_workers=0, n_partitions=12)
    assert run.n_clusters > 2
    return run.labels[:]


def fit(source, out, client, progress=None):
    found = paper.fit(source, out, n_partitions=12, client=client, progress=progress)
    return found.labels[:]


class At:
    """Does something once, when the first task of a stage is done."""

    def __init__(self, stage, action):
        self.events = []
        self._stage, self._action = stage, action

    def __call__(self, event):
        self.events.append(event)
        if self._action and (event.stage, event.kind) == (self._stage, "task-done"):
            action, self._action = self._action, None
            action()

    @property
    def lost(self):
        return [event.text for event in self.events if event.kind == "worker-lost"]


# Schedulers


@pytest.fixture
def cluster(tmp_path):
    with Processes(tmp_path) as processes:
        processes.boss, processes.address = processes.scheduler()
        processes.hands = [processes.worker(processes.address) for _ in range(2)]
        yield processes


def test_a_scheduler_that_is_killed_ends_in_a_sentence(cluster, source, labels, tmp_path):
    kill = At("neighbors", cluster.boss.kill)
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "10s"}),
        pytest.raises(WorkerLostError, match="connection to the scheduler broke for good") as error,
    ):
        fit(source, tmp_path / "out", cluster.address, kill)
    assert exit_code(error.value) == 6
    _, address = cluster.scheduler()
    cluster.worker(address)
    np.testing.assert_array_equal(fit(source, tmp_path / "out", address), labels)


def test_a_scheduler_that_comes_back_is_found_again(cluster, source, labels, tmp_path):
    port = cluster.address.rsplit(":")[-1]

    def restart():
        cluster.boss.kill()
        cluster.boss.wait()
        cluster.scheduler(port=port)
        for hand in cluster.hands:  # dask's workers end with their scheduler
            hand.wait(120)
            cluster.worker(cluster.address)

    restarting = threading.Thread(target=restart, daemon=True)
    progress = At("neighbors", restarting.start)
    with dask.config.set({"distributed.comm.timeouts.connect": "120s"}):
        found = fit(source, tmp_path / "out", cluster.address, progress)
    restarting.join()  # what it starts later would be left behind
    np.testing.assert_array_equal(found, labels)
    starts = [event.stage for event in progress.events if event.kind == "stage-start"]
    assert starts.count("neighbors") == 1
    assert cluster.boss.poll() is not None


def test_a_killed_worker_changes_nothing(cluster, source, labels, tmp_path):
    progress = At("neighbors", cluster.hands[0].kill)
    np.testing.assert_array_equal(fit(source, tmp_path / "out", cluster.address, progress), labels)


# Hosts


@dataclasses.dataclass
class Network:
    """A bridge with hosts around it; the driver is at its first address."""

    name: str
    net: str
    n_hosts: int = 0

    @property
    def driver(self):
        """The address of the driver."""
        return f"{self.net}.1"

    def host(self):
        """Add a host; return its name and its address."""
        self.n_hosts += 1
        name, place = f"{self.name}h{self.n_hosts}", f"{self.net}.{self.n_hosts + 1}"
        ip("netns", "add", name)
        ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", name, "master", self.name, "up")
        ip("-n", name, "addr", "add", f"{place}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "link", "set", "lo", "up")
        return name, place

    def cut(self, host):
        """Cut the cable of a host: nobody is told."""
        ip("link", "set", host, "down")

    def close(self):
        """Take it all down."""
        for number in range(1, self.n_hosts + 1):
            ip("netns", "del", f"{self.name}h{number}", check=False)
            ip("link", "del", f"{self.name}h{number}", check=False)
        ip("link", "del", self.name, check=False)


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


@pytest.fixture(scope="module")
def network():
    if shutil.which("ip") is None:
        pytest.skip("there is no command ip here")
    number = uuid.uuid4().int
    made = Network(f"sp{number % 16**6:06x}", f"10.{200 + number % 50}.{number // 50 % 250}")
    try:
        for words in (
            ["link", "add", made.name, "type", "bridge"],
            ["addr", "add", f"{made.driver}/24", "dev", made.name],
            ["link", "set", made.name, "up"],
        ):
            found = ip(*words, check=False)
            if found.returncode:
                pytest.skip(f"this user may not make networks: {found.stderr.strip()}")
        try:
            made.host()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this user may not make network namespaces: {error.stderr.strip()}")
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """The files of an authority, and of a certificate that it has signed."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


def make_certificates(folder):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    pem, now = serialization.Encoding.PEM, datetime.datetime.now(datetime.UTC)
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()

    def signed(name, key, issuer, issuer_key, is_authority):
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .sign(issuer_key, hashes.SHA256())
        )

    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, n)]) for n in ("ca", "all")]
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in names]
    ca = signed(names[0], keys[0], names[0], keys[0], True)
    cert = signed(names[1], keys[1], names[0], keys[0], False)
    files = {name: folder / f"{name}.pem" for name in ("ca", "cert", "key")}
    files["ca"].write_bytes(ca.public_bytes(pem))
    files["cert"].write_bytes(cert.public_bytes(pem))
    files["key"].write_bytes(keys[1].private_bytes(pem, *plain))
    return {name: str(path) for name, path in files.items()}


@dataclasses.dataclass
class Hosts:
    """A scheduler and workers on hosts of their own, which talk TLS."""

    address: str
    names: list[str]
    """The workers' hosts."""
    places: list[str]
    """Their addresses."""


@pytest.fixture
def hosts(network, tls, tmp_path, request):
    """Hosts with processes whose environment a test may add to."""
    environ = getattr(request, "param", {})
    flags = {"--tls-ca-file": tls["ca"], "--tls-cert": tls["cert"], "--tls-key": tls["key"]}
    with Processes(tmp_path) as processes:

        def at(host):
            return {"before": ["ip", "netns", "exec", host], "environ": environ}

        boss, place = network.host()
        secure = ["--protocol", "tls", *itertools.chain(*flags.items())]
        _, address = processes.scheduler(*secure, host=place, **at(boss))
        workers = [network.host() for _ in range(2)]
        for name, place in workers:
            processes.worker(address, *secure, "--host", place, **at(name))
        yield Hosts(address, *map(list, zip(*workers, strict=True)))


def test_a_fit_across_hosts_with_tls_is_the_local_one(hosts, tls, source, labels, tmp_path):
    assert hosts.address.startswith("tls://10.")
    section = {"kind": "address", "address": hosts.address, "tls": tls}
    progress = At("", None)
    with spore_dask.connect(section) as client:
        wait_until(lambda: len(client.scheduler_info()["workers"]) == 2)
        found = set(client.scheduler_info()["workers"])
        assert {ipaddress.ip_address(a.split("/")[2].split(":")[0]) for a in found} == {
            ipaddress.ip_address(place) for place in hosts.places
        }
        np.testing.assert_array_equal(fit(source, tmp_path / "out", client, progress), labels)
    done = {event.process for event in progress.events if event.stage == "neighbors"} - {""}
    assert len(done) == 2
    assert not progress.lost


@pytest.mark.parametrize("hosts", [QUICK], indirect=True, ids=["quick"])
def test_a_host_that_is_cut_off_changes_nothing(hosts, network, tls, source, labels, tmp_path):
    section = {"kind": "address", "address": hosts.address, "tls": tls}
    progress = At("neighbors", lambda: network.cut(hosts.names[0]))
    with spore_dask.connect(section) as client:
        wait_until(lambda: len(client.scheduler_info()["workers"]) == 2)
        np.testing.assert_array_equal(fit(source, tmp_path / "out", client, progress), labels)
        [left] = client.scheduler_info()["workers"]
    assert left.startswith(f"tls://{hosts.places[1]}:")
    [lost] = progress.lost
    assert lost.startswith(f"The worker at tls://{hosts.places[0]}:")


def test_a_client_without_certificates_is_refused(hosts, tls, tmp_path):
    (tmp_path / "other").mkdir()
    others = make_certificates(tmp_path / "other")
    plain = {"kind": "address", "address": hosts.address.replace("tls://", "tcp://")}
    foreign = {"kind": "address", "address": hosts.address, "tls": others}
    with dask.config.set({"distributed.comm.timeouts.connect": "2s"}):
        for section in (plain, foreign):
            with pytest.raises(NoSchedulerError, match="no Dask scheduler answers there"):
                spore_dask.connect(section)
    with spore_dask.connect({"kind": "address", "address": hosts.address, "tls": tls}) as client:
        assert client.submit(pow, 2, 3).result() == 8


def test_certificates_from_the_environment(hosts, tls):
    files = {
        "distributed.comm.tls.ca-file": tls["ca"],
        "distributed.comm.tls.client.cert": tls["cert"],
        "distributed.comm.tls.client.key": tls["key"],
    }
    with dask.config.set(files), spore_dask.connect(hosts.address) as client:
        assert client.submit(pow, 2, 3).result() == 8
