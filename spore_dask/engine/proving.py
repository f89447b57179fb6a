"""Has workers prove that they are fit for a run: all of them at first, later ones when they come.

A proof is a function that each worker calls with its address and its memory; it returns what is
wrong. It goes along with every task, and is done once in each worker before the first of them, so
that no worker that came later, or anew, does a task unproved.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import uuid
from collections.abc import Callable
from typing import Any

from spore_dask.cgroups import usable_nbytes
from spore_dask.engine import settings
from spore_dask.engine.failures import WorkerLostError
from spore_dask.errors import PreflightError

Check = Callable[[str, int], str | None]
"""Takes a worker's address and the bytes that a task may use there; returns what is wrong."""

_proved: set[tuple[str, str]] = set()


@dataclasses.dataclass(frozen=True)
class Proof:
    """What workers have to prove."""

    check: bytes
    """The pickled `Check`."""
    token: str
    """A name for it."""

    @classmethod
    def of(cls, check: Check) -> Proof:
        """Return the proof that a check asks for."""
        from distributed.protocol import pickle

        dumps: Any = pickle.dumps
        return cls(dumps(check), uuid.uuid4().hex)


def prove(proof: Proof, worker: Any) -> str | None:
    """Return what is wrong with a worker, in this process; ask no more when it is nothing."""
    from distributed.protocol import pickle

    key = proof.token, str(worker.address)
    if key in _proved:
        return None
    loads: Any = pickle.loads
    try:
        wrong: str | None = loads(proof.check)(worker.address, _share_nbytes(worker))
    except (ImportError, AttributeError, TypeError) as error:
        wrong = f"has another version of spore_dask ({_words(error)}): install the driver's there"
    except Exception as error:
        wrong = f"failed to prove that it is fit ({_words(error)}): look at its log"
    if wrong is None:
        _proved.add(key)
        return None
    return f"The worker at {worker.address} on {socket.gethostname()} {wrong}."


def _share_nbytes(worker: Any) -> int:
    """Return the bytes that each thread of a worker may use; all there are where nothing limits."""
    limit = getattr(worker.memory_manager, "memory_limit", None)
    n_threads = worker.state.nthreads
    return int(limit or usable_nbytes()) // int(n_threads)


async def _prove_here(proof: Proof, dask_worker: Any = None) -> str | None:
    """Prove it in a thread of its own, so that a slow disk does not make the worker look dead."""
    return await asyncio.to_thread(prove, proof, dask_worker)


def prove_all(client: Any, proof: Proof) -> list[str]:
    """Have all workers of a cluster prove it; return their addresses, or raise `PreflightError`."""

    async def ask(address: str) -> str | None:
        call = client.run(_prove_here, proof, workers=[address], on_error="return")
        try:
            answer = (await asyncio.wait_for(call, settings.START_TIMEOUT)).get(address)
        except Exception as error:
            answer = error
        if answer is None or isinstance(answer, str):
            return answer
        if isinstance(answer, OSError):  # a timeout as well
            wrong = (
                f"does not answer ({_words(answer)}): end it, or see whether its disks and its "
                "network do"
            )
        else:
            wrong = (
                f"cannot run spore_dask ({_words(answer)}): install there what the driver has, in "
                "the same versions"
            )
        return f"The worker at {address} {wrong}."

    async def ask_all() -> dict[str, str | None]:
        workers = (await client.scheduler.identity(n_workers=-1))["workers"]
        answers = await asyncio.gather(*map(ask, workers))
        left = (await client.scheduler.identity(n_workers=-1))["workers"]
        pairs = zip(workers, answers, strict=True)
        return {address: answer for address, answer in pairs if address in left}

    seconds = settings.START_TIMEOUT + 2 * settings.LOOK_TIMEOUT
    try:
        answers: dict[str, str | None] = client.sync(ask_all, callback_timeout=seconds)
    except OSError as error:
        raise WorkerLostError(
            f"The scheduler does not answer ({_words(error)}). See whether it still runs, and call "
            "again."
        ) from error
    wrong = [answer for answer in answers.values() if answer]
    if wrong:
        more = f" So it is with {len(wrong)} workers." if len(wrong) > 1 else ""
        raise PreflightError(wrong[0] + more)
    return list(answers)


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
