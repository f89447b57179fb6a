"""How what a store refuses for a moment is tried again, and what its errors mean.

Knows errors of any library by their class names, HTTP statuses and numbers; does nothing itself.
Neither what is raised nor what is logged has secrets of an address in it.
"""

from __future__ import annotations

import errno
import logging
import random
import re
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from spore_dask.errors import DeniedError, InputError, SporeError, StoreError

N_TRIES = 6
FIRST_WAIT_SECONDS = 0.25
WAIT_FACTOR = 3.0
"""Waits between tries: up to 0.25, 0.75, 2.25, 6.75 and 20.25 s, each a half of that at least."""
MOST_SECONDS = 60.0
"""Time after which nothing is tried again, however few tries there were."""

TRANSIENT = {
    errno.EIO,  # what S3 means by 502, and what a network disk says
    errno.EBUSY,
    errno.EAGAIN,
    errno.EINTR,
    errno.ESTALE,
    errno.EPIPE,
    errno.ETIMEDOUT,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ECONNRESET,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    getattr(errno, "EREMOTEIO", errno.EIO),
}
TRANSIENT_STATUSES = {408, 425, 429, 500, 502, 503, 504, 509}
TRANSIENT_NAMES = {
    "HTTPClientError",  # of botocore, like the next two
    "EndpointConnectionError",
    "ResponseParserError",
    "ClientConnectionError",  # of aiohttp, like the next
    "ClientPayloadError",
    "IncompleteRead",
}
DENIED_NAMES = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "TokenRetrievalError",
    "ProfileNotFound",
    "DefaultCredentialsError",
    "ClientAuthenticationError",
}
REFUSED_NAMES = {"ParamValidationError"}
"""Classes by name: their libraries are loaded only where they are used."""
LOGGER = logging.getLogger(__name__)
ResultType = TypeVar("ResultType")


def hide(text: str) -> str:
    """Return a text without what might be secret in the addresses in it."""
    text = re.sub(r"://[^\s'\"]*@", "://***@", text)
    return re.sub(r"(://[^?#'\"]*)[?#][^\s'\"]*", r"\1?***", text)


def waits_between() -> Iterator[float]:
    """Yield the seconds to wait before each further try, as long as there is one."""
    begun = time.monotonic()
    for i in range(N_TRIES - 1):
        if time.monotonic() - begun > MOST_SECONDS:
            return
        yield FIRST_WAIT_SECONDS * WAIT_FACTOR**i * random.uniform(0.5, 1)


def wait_after(error: Exception, waits: Iterator[float], url: str) -> float:
    """Return the seconds to wait before what has failed is tried again; else raise a sentence."""
    if isinstance(error, SporeError | FileNotFoundError):
        raise error
    chain = _chain(error)
    reason = hide(f"{type(error).__name__}: {error}".strip(": ").rstrip("."))
    if "://" in url and (_is_any(chain, DENIED_NAMES) or isinstance(error, PermissionError)):
        raise DeniedError(
            f"Access to {hide(url)!r} was refused ({reason}): every process needs credentials in "
            "its environment that may read, write, list and delete there, and a clock that is "
            "right; then the same call continues."
        ) from None
    if _is_any(chain, REFUSED_NAMES):
        raise InputError(
            f"{hide(url)!r} is not an address of a store ({reason}): check it."
        ) from None
    if not _is_transient(chain):
        raise error
    wait = next(waits, None)
    if wait is None:
        raise StoreError(
            f"The store of {hide(url)!r} still fails after {N_TRIES} tries or "
            f"{MOST_SECONDS:.0f} s ({reason}): make sure that it can be reached; then the same "
            "call continues."
        ) from None
    LOGGER.info("%s failed (%s): trying again in %.1f s.", hide(url), reason, wait)
    return wait


def _chain(error: BaseException | None) -> list[BaseException]:
    """Return an error and those that it was made from."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__
    return found


def _is_any(chain: list[BaseException], names: set[str]) -> bool:
    """Tell whether an error is of a class with one of these names."""
    return any(kind.__name__ in names for error in chain for kind in type(error).__mro__)


def _is_transient(chain: list[BaseException]) -> bool:
    """Tell whether it may help to try again after an error."""
    if _is_any(chain, TRANSIENT_NAMES) or isinstance(chain[0], ConnectionError | TimeoutError):
        return True
    statuses = {status for error in chain if (status := _status(error)) is not None}
    if statuses:
        return bool(statuses & TRANSIENT_STATUSES)
    return isinstance(chain[0], OSError) and chain[0].errno in TRANSIENT


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that an error of any library tells of."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        names = ("status", "status_code", "code")
        found = next(
            (v for name in names if isinstance(v := getattr(error, name, None), int)), None
        )
    return found if isinstance(found, int) and 300 <= found < 600 else None


def patiently(action: Callable[[], ResultType], url: str) -> ResultType:
    """Do something with a store; again, after a while, if it fails in a way that may pass.

    Raises `StoreError` when that has gone on for too long, and `DeniedError` at once.
    """
    waits = waits_between()
    while True:
        try:
            return action()
        except Exception as error:
            wait = wait_after(error, waits, url)
        time.sleep(wait)
