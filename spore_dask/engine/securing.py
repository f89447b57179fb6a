"""Certificates for the connections of a cluster: those of files, or one made for a single call.

Without them, any user of this machine could connect to a local scheduler and run code as its user.
A certificate that is made here exists in memory only; workers get its key through a pipe.
"""

from __future__ import annotations

import datetime
from typing import Any

ROLES = ("client", "scheduler", "worker")
FIRST = datetime.datetime(1970, 1, 1)
LAST = datetime.datetime(9999, 12, 31, 23, 59, 59)
"""The time for which a certificate is valid: all of it, so that no clock matters."""


def security_of(ca: str, cert: str, key: str) -> Any:
    """Return dask's security for three PEM files, or their texts, that all processes share."""
    from distributed import Security

    each = {f"tls_{role}_cert": cert for role in ROLES} | {f"tls_{role}_key": key for role in ROLES}
    security: Any = Security
    return security(tls_ca_file=ca, require_encryption=True, **each)


def new_certificate() -> dict[str, str]:
    """Return the texts for `security_of` of a new certificate, which is its own authority.

    Its key is on an elliptic curve, since `Security.temporary` takes 25 to 100 ms for one of RSA.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "spore_dask")])
    cert = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(FIRST)
        .not_valid_after(LAST)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    text = cert.public_bytes(pem).decode()
    return {"ca": text, "cert": text, "key": private.decode()}
