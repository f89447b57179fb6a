"""Another user of this machine tries to reach the scheduler and the workers of a local fit."""

import json
import os
import subprocess
import sys

import numpy as np
import psutil
import pytest

from tests import paper
from tests.clusters import ROOT

STRANGER = 65534
PATHS = ("/", "/status", "/info/main/workers.html", "/json/identity.json", "/metrics", "/health")
PROBE = """
import asyncio, http.client, json, os, ssl, sys
import dask, distributed
from distributed.core import rpc
from distributed.protocol.pickle import dumps
from spore_dask.engine.securing import new_certificate, security_of

dask.config.set({"distributed.comm.timeouts.connect": "5s"})
uid, ports, paths = json.loads(sys.argv[1])
own = security_of(**new_certificate())
calls = {"function": dumps(os.getuid), "args": dumps(()), "kwargs": dumps({})}

async def ask(scheme, port):
    "Run code there, as dask's Client does, if it answers; whoever it is."
    args = own.get_connection_args("client") if scheme == "tls" else {}
    if args:
        args["ssl_context"].verify_mode = ssl.CERT_NONE
    try:
        async with rpc(f"{scheme}://127.0.0.1:{port}", connection_args=args) as there:
            kind = (await there.identity())["type"]
            run = there.run_function if kind == "Scheduler" else there.run
            return f"{kind} runs code: {(await run(**calls))['result']}"
    except Exception as error:
        return type(error).__name__

def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__

async def control():
    "What is open answers; and all modules are loaded while they can still be read."
    found = []
    for scheme, more in (("tcp", {}), ("tls", {"security": own, "protocol": "tls://"})):
        async with distributed.Scheduler(
            host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0", **more
        ) as scheduler:
            found.append(await ask(scheme, scheduler.port))
            found.append(await asyncio.to_thread(get, scheduler.http_server.port, "/health"))
    return found

async def attack():
    pairs = [(scheme, port) for scheme in ("tcp", "tls") for port in ports]
    tries = [asyncio.wait_for(ask(*pair), 10) for pair in pairs]  # a web server waits for more
    answers = [repr(each) for each in await asyncio.gather(*tries, return_exceptions=True)]
    pages = [await asyncio.to_thread(get, port, path) for port in ports for path in paths]
    return {"answers": answers, "pages": pages}

found = {"control": asyncio.run(control())}
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
print(json.dumps({**found, "uid": os.getuid(), **asyncio.run(attack())}))
"""
"""Shows that it can run code on schedulers of its own, becomes another user, tries it elsewhere."""


def listening():
    """Return the processes of this test and the ports that they listen on."""
    own = psutil.Process()
    return {
        (process.pid, connection.laddr)
        for process in (own, *own.children(recursive=True))
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }


def visit(ports):
    """Have another user try the ports; return what it says."""
    probe = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps([STRANGER, ports, PATHS])],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert probe.returncode == 0, probe.stderr
    return json.loads(probe.stdout.splitlines()[-1])


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_cannot_use_the_workers_of_a_local_fit(tmp_path):
    before, seen = listening(), {}

    def look(event):
        if (event.stage, event.kind) == ("neighbors", "stage-start"):
            seen["places"] = listening() - before
            seen["lines"] = [p.cmdline() for p in psutil.Process().children(recursive=True)]
            seen["visit"] = visit(sorted(address.port for _, address in seen["places"]))

    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(centre, 0.3, (500, 2)) for centre in (0, 4)])
    run = paper.fit(points, tmp_path / "out", n_workers=2, progress=look)

    found = seen["visit"]
    assert found["control"] == ["Scheduler runs code: 0", 200] * 2
    assert found["uid"] == STRANGER
    assert {address.ip for _, address in seen["places"]} == {"127.0.0.1"}
    assert len({pid for pid, _ in seen["places"]}) == 3
    assert not [answer for answer in found["answers"] if "runs code" in answer]
    assert not [page for page in found["pages"] if page == 200]
    assert not [line for line in seen["lines"] if "PRIVATE KEY" in " ".join(line)]
    here = paper.fit(points, tmp_path / "here", n_workers=0)
    np.testing.assert_array_equal(run.labels[:], here.labels[:])
