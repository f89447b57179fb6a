"""Chaos: fits that a random fault hits at a random stage, called again until they are done.

    python -m pipelines.chaos [--runs 20] [--seed 0] [--points 200000] [--fault NAME ...]

Each run is the command `spore-dask fit --params paper` against a real scheduler and two workers,
with an output folder of its own. One fault hits it once, a random part into a random stage: SIGKILL
of a worker, of the scheduler or of the driver; a store (moto's S3 server behind a proxy) that
answers 500 until the driver gives up; a disk that is full (a small tmpfs); a file of the run that
is flipped, cut or gone. Then the same command is called until it ends with exit code 0.
A run passes if its labels equal those of the undisturbed run element by element, `verify` finds
nothing, and no call that failed left a result that says it is finished. Prints one line a run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import re
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import spore_dask
from pipelines.graphs import crowded, write_zarr

N_WORKERS = 2
MOST_ATTEMPTS = 6
UNEXPECTED = 1
"""Exit code of an error that nobody put into words."""
ATTEMPT_SECONDS = 300.0
"""After this time a driver counts as hung."""
LONGEST_DELAY = 0.5
"""Seconds into a stage at most; the first run, whose stages are timed, compiles in some of them."""
START_SECONDS = 60.0
LEFT_NBYTES = 4096
"""What a disk that is filled has left."""
FAULTS = ("worker", "scheduler", "driver", "store", "disk", "chunk")
BUCKET = "chaos"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "chaos",
    "AWS_SECRET_ACCESS_KEY": "chaos",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def free_port() -> int:
    """Return a port of this machine that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int) -> None:
    """Wait until somebody listens."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody listens at port {port}")
        time.sleep(0.1)


class Cluster:
    """A scheduler and workers, each a process; what has died is started again by `mend`."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self._log = (folder / "cluster.log").open("ab")
        self.scheduler: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []

    def mend(self) -> None:
        """Start what is not there."""
        if self.scheduler is None or self.scheduler.poll() is not None:
            for worker in self.workers:  # they belong to the one that is gone
                worker.kill()
                worker.wait()
            own = ("--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard")
            self.scheduler = self._start("scheduler", *own)
            wait_for_port(self.port)
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        while len(self.workers) < N_WORKERS:
            own = ("--nthreads", "1", "--memory-limit", "1GiB", "--no-dashboard", "--no-nanny")
            self.workers.append(self._start("worker", self.address, "--host", "127.0.0.1", *own))

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", *arguments]
        return subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def close(self) -> None:
        """End all of them."""
        for process in (*self.workers, self.scheduler):
            if process is not None:
                process.kill()
                process.wait()
        self._log.close()


class Store:
    """An S3 server behind a proxy, which answers 500 while `fails` is set."""

    def __init__(self, folder: Path) -> None:
        server, self.port = free_port(), free_port()
        self.fails = threading.Event()
        self._log = (folder / "store.log").open("ab")
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(server)]
        self._server = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        wait_for_port(server)
        store = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    store.pass_on(self.request, server)

        self._proxy = socketserver.ThreadingTCPServer(("127.0.0.1", self.port), Handler)
        self._proxy.daemon_threads = True
        threading.Thread(target=self._proxy.serve_forever, daemon=True).start()
        os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{self.port}"
        os.environ.update(CREDENTIALS)

    def pass_on(self, client: socket.socket, port: int) -> None:
        """Pass a connection on; refuse it, or cut it off, while the store fails."""
        refusal = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n"
        if self.fails.is_set():
            client.recv(1 << 16)
            client.sendall(refusal + b"Connection: close\r\n\r\n")
            return
        with socket.create_connection(("127.0.0.1", port)) as server:
            back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
            back.start()
            self._copy(client, server)
            back.join()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        """Copy bytes until either side ends, or the store fails."""
        source.settimeout(0.2)
        with contextlib.suppress(OSError):
            while not self.fails.is_set():
                try:
                    content = source.recv(1 << 18)
                except TimeoutError:
                    continue
                if not content:
                    break
                target.sendall(content)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End both."""
        self._proxy.shutdown()
        self._proxy.server_close()
        self._server.kill()
        self._server.wait()
        self._log.close()


class Driver:
    """One call of the command, whose events are heard as they come."""

    def __init__(self, source: str, out: str, address: str, n_partitions: int) -> None:
        own = ["--scheduler", address, "--n-partitions", str(n_partitions), "--keep", "all"]
        own += ["--params", "paper"]
        code = "from spore_dask.cli import main; main()"
        command = [sys.executable, "-c", code, "fit", source, out, *own, "--progress", "json"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.said = ""
        """The last line that is no event."""
        self.durations: dict[str, float] = {}
        """Seconds of each stage that has ended."""
        self._hear: Callable[[str, str], None] = lambda kind, stage: None
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def run(self, hear: Callable[[str, str], None]) -> int | str:
        """Wait for the end; return the exit code. `hear` gets the kind and stage of each event."""
        self._hear = hear
        self._thread.start()
        try:
            code: int | str = self.process.wait(ATTEMPT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = "hung"
        self._thread.join()
        return code

    def _listen(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self._take(line)

    def _take(self, line: str) -> None:
        """Hear one line."""
        try:
            event = json.loads(line)
        except ValueError:
            self.said = line.strip() or self.said
            return
        self._hear(event["kind"], event["stage"])
        if event["kind"] == "stage-end":
            self.durations[event["stage"]] = float(event["seconds"])


@dataclasses.dataclass
class Site:
    """Where the runs take place."""

    folder: Path
    source: str
    cluster: Cluster
    store: Store | None
    n_partitions: int

    def driver(self, source: str, out: str) -> Driver:
        """Start a driver, on a cluster that is whole."""
        self.cluster.mend()
        return Driver(source, out, self.cluster.address, self.n_partitions)


@dataclasses.dataclass
class Fault:
    """A fault, which hits once, some time into a stage."""

    kind: str
    stage: str
    delay: float
    dice: random.Random
    hit: str = ""
    """What it has hit, in words; nothing as long as it has not."""

    def hear(self, site: Site, driver: Driver, out: str, event: tuple[str, str]) -> None:
        """Hit, when the stage has come; end what goes on when the driver has given up."""
        if event[0] == "stage-failed" and site.store is not None:
            site.store.fails.clear()
        if event == ("stage-start", self.stage) and not self.hit:
            time.sleep(self.delay)
            self.hit = getattr(self, f"_{self.kind}")(site, driver, out)

    def _worker(self, site: Site, driver: Driver, out: str) -> str:
        number = self.dice.randrange(N_WORKERS)
        site.cluster.workers[number].send_signal(signal.SIGKILL)
        return f"worker {number} killed"

    def _scheduler(self, site: Site, driver: Driver, out: str) -> str:
        assert site.cluster.scheduler is not None
        site.cluster.scheduler.send_signal(signal.SIGKILL)
        site.cluster.scheduler.wait()
        site.cluster.mend()
        return "scheduler killed, and started again"

    def _driver(self, site: Site, driver: Driver, out: str) -> str:
        driver.process.send_signal(signal.SIGKILL)
        return "driver killed"

    def _store(self, site: Site, driver: Driver, out: str) -> str:
        assert site.store is not None
        site.store.fails.set()
        return "500 until the driver gave up"

    def _disk(self, site: Site, driver: Driver, out: str) -> str:
        disk = Path(out).parent
        free = os.statvfs(disk)
        with contextlib.suppress(OSError), (disk / "filler").open("wb") as file:
            left = max(0, free.f_bavail * free.f_frsize - LEFT_NBYTES)
            while left > 0:
                left -= file.write(bytes(min(left, 1 << 20)))
        return "disk filled"

    def _chunk(self, site: Site, driver: Driver, out: str) -> str:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:  # until there is a file that stays long enough
            with contextlib.suppress(FileNotFoundError, IndexError):
                return damage(self.dice.choice(files_of(Path(out))), self.dice, Path(out))
        return ""

    def over(self, site: Site, out: str) -> None:
        """Mend what was broken, as someone would who looked at it in the morning."""
        if site.store is not None:
            site.store.fails.clear()
        (Path(out).parent / "filler").unlink(missing_ok=True)


def files_of(out: Path) -> list[Path]:
    """Return the files of the stages that are done; of any stage, if none is."""
    done = [path.parent for path in out.glob("*/done.json")]
    folders = done or [path for path in out.iterdir() if path.is_dir()]
    return sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())


def damage(path: Path, dice: random.Random, out: Path) -> str:
    """Harm a file; return what was done."""
    name, size = path.relative_to(out), max(1, path.stat().st_size)
    how = dice.choice(("flipped", "cut", "blanked", "gone"))
    if how == "gone":
        path.unlink()
    elif how == "cut":
        os.truncate(path, size // 2)
    else:
        place = dice.randrange(size)
        n_bytes = 1 if how == "flipped" else min(64, size - place)
        with path.open("r+b") as file:
            file.seek(place)
            before = file.read(n_bytes)
            file.seek(place)
            file.write(bytes([before[0] ^ 1]) if how == "flipped" else bytes(n_bytes))
    return f"{name} {how}"


@dataclasses.dataclass
class Outcome:
    """What a run came to."""

    codes: list[int | str]
    """Exit codes of the calls."""
    equal: bool = False
    """Whether its labels are those of the undisturbed run."""
    whole: bool = False
    """Whether `verify` found nothing, at last."""
    lied: bool = False
    """Whether a call that failed left a result that says it is finished, and is not."""
    said: str = ""
    """The last sentence of a call that failed."""

    @property
    def passed(self) -> bool:
        """Whether all is as it should be."""
        return self.equal and self.whole and not self.lied and UNEXPECTED not in self.codes


def fit_until_done(
    site: Site, fault: Fault, source: str, out: str, labels: NDArray[Any]
) -> Outcome:
    """Call the command until it ends well and what it left is whole."""
    outcome = Outcome([])
    while len(outcome.codes) < MOST_ATTEMPTS:
        driver = site.driver(source, out)
        code = driver.run(lambda *event, now=driver: fault.hear(site, now, out, event))
        outcome.codes.append(code)
        fault.over(site, out)
        if code != 0:
            if outcome.said == "" or code == UNEXPECTED:
                outcome.said = driver.said
            outcome.lied |= is_finished(out) and not is_whole(out, labels)
            continue
        outcome.equal = np.array_equal(spore_dask.open_run(out).labels[...], labels)
        try:
            spore_dask.verify(out)
            outcome.whole = True
            break
        except spore_dask.DamagedError as error:
            outcome.codes.append("found by verify")
            remove_what_is_named(str(error))
    return outcome


def is_finished(out: str) -> bool:
    """Tell whether there is a result that says it is finished."""
    try:
        spore_dask.open_run(out)
    except spore_dask.InputError:
        return False
    return True


def is_whole(out: str, labels: NDArray[Any]) -> bool:
    """Tell whether a result is what it says: a driver may be killed after its last write."""
    try:
        spore_dask.verify(out)
    except spore_dask.DamagedError:
        return False
    return np.array_equal(spore_dask.open_run(out).labels[...], labels)


def remove_what_is_named(sentence: str) -> None:
    """Do what `verify` says: remove the folders that it names, and fit again."""
    for folder in re.findall(r"'([^']+)'", sentence.rpartition(": remove ")[2]):
        shutil.rmtree(folder, ignore_errors=True)  # one that is not there is gone already


@contextlib.contextmanager
def small_disk(folder: Path, nbytes: int) -> Iterator[Path]:
    """Mount a file system of a few bytes."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", str(folder)]
    subprocess.run(["mount", *options], check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def can_mount(folder: Path) -> bool:
    """Tell whether this process may mount a disk."""
    try:
        with small_disk(folder / "probe", 1 << 20):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def copy_to_store(store: Store, source: str) -> str:
    """Copy the source to the store; return its address."""
    import fsspec

    files = fsspec.filesystem("s3", use_listings_cache=False)
    files.mkdir(BUCKET)
    address = f"s3://{BUCKET}/x.zarr"
    files.put(source, address, recursive=True)
    return address


def run_once(
    site: Site, number: int, fault: Fault, far: str, labels: NDArray[Any], disk_nbytes: int
) -> Outcome:
    """Make one run, in a folder of its own."""
    folder = site.folder / f"run-{number}"
    if fault.kind == "store":
        out = f"s3://{BUCKET}/run-{number}.spore"
        return fit_until_done(site, fault, far, out, labels)
    if fault.kind == "disk":
        with small_disk(folder, disk_nbytes) as disk:
            return fit_until_done(site, fault, site.source, str(disk / "out"), labels)
    folder.mkdir()
    outcome = fit_until_done(site, fault, site.source, str(folder / "out"), labels)
    shutil.rmtree(folder)
    return outcome


def undisturbed(site: Site) -> tuple[NDArray[Any], dict[str, float], int]:
    """Return the labels without any fault, the seconds of each stage, and the bytes on disk."""
    out = site.folder / "undisturbed"
    driver = site.driver(site.source, str(out))
    code = driver.run(lambda *event: None)
    if code != 0:
        raise RuntimeError(f"the undisturbed run ended with {code}: {driver.said}")
    nbytes = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return np.asarray(spore_dask.open_run(out).labels[...]), driver.durations, nbytes


def chaos(folder: Path, options: argparse.Namespace) -> bool:
    """Make all runs; tell whether every one of them passed."""
    dice = random.Random(options.seed)
    kinds = [kind for kind in options.fault or FAULTS if kind != "disk" or can_mount(folder)]
    source = write_zarr(folder / "x.zarr", crowded(options.points, 3), 16)
    cluster = Cluster(folder)
    store = Store(folder) if "store" in kinds else None
    site = Site(folder, source, cluster, store, options.partitions)
    try:
        labels, durations, nbytes = undisturbed(site)
        far = copy_to_store(store, source) if store else ""
        n_passed = 0
        for number in range(options.runs):
            kind = kinds[number % len(kinds)] if options.runs <= len(kinds) else dice.choice(kinds)
            stage = dice.choice(sorted(durations))
            delay = dice.uniform(0, min(durations[stage], LONGEST_DELAY))
            fault = Fault(kind, stage, delay, random.Random(dice.random()))
            started = time.perf_counter()
            outcome = run_once(site, number, fault, far, labels, 3 * nbytes)
            n_passed += outcome.passed
            _print(number, fault, outcome, time.perf_counter() - started)
        print(f"{n_passed} of {options.runs} ended with the labels of the undisturbed run")
        return n_passed == options.runs
    finally:
        cluster.close()
        if store is not None:
            store.close()


def _print(number: int, fault: Fault, outcome: Outcome, seconds: float) -> None:
    """Print what a run came to."""
    calls = ", ".join(map(str, outcome.codes))
    words = {
        "labels equal": outcome.equal,
        "verified": outcome.whole,
        "no false claim": not outcome.lied,
        "no unexpected error": UNEXPECTED not in outcome.codes,
    }
    said = ", ".join(word if holds else f"NOT {word}" for word, holds in words.items())
    hit = fault.hit or "not hit: the stage did not come"
    print(
        f"{number + 1:>3}  {fault.kind:<10}{fault.stage:<16}{hit}; exit codes {calls}; {said}; "
        f"{seconds:.0f} s" + ("" if outcome.passed else f"; {outcome.said}"),
        flush=True,
    )


def main(arguments: list[str] | None = None) -> int:
    """Make the runs; return 0 if all of them passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--points", type=int, default=200_000)
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--fault", action="append", choices=FAULTS)
    options = parser.parse_args(arguments)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave nothing behind
    try:
        with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
            return 0 if chaos(Path(folder), options) else 1
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
