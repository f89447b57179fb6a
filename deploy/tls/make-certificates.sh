#!/usr/bin/env bash
# Make a private certificate authority, and a certificate with its key for the scheduler, the
# workers and the client of a Dask cluster. Dask checks who signed a certificate, on both sides of
# every connection, so whoever holds one of these keys may join: keep the folder to yourself.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: make-certificates.sh [-d DAYS] [-a rsa|ec] FOLDER [NAME ...]

Writes ca.pem, scheduler.pem, worker.pem, client.pem and a .key for each into FOLDER, which must
not hold any of them. NAME is a host name or an IP address that the certificates stand for
(subject alternative name); localhost, 127.0.0.1 and this host's name are always among them.

  -d DAYS   days until the certificates expire (365); the authority lives ten times as long
  -a KIND   kind of keys: ec (P-256, the default) or rsa (3072 bits)

ca.key signs further certificates: keep it off the machines of the cluster.
TEXT
}

days=365
kind=ec
while getopts 'd:a:h' option; do
    case $option in
        d) days=$OPTARG ;;
        a) kind=$OPTARG ;;
        h) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[[ $# -ge 1 ]] || { usage >&2; exit 2; }
[[ $days =~ ^[1-9][0-9]{0,4}$ ]] || { echo "DAYS is '$days', but must be a whole number from 1 to 99999." >&2; exit 2; }
case $kind in
    ec) key_options=(-algorithm EC -pkeyopt ec_paramgen_curve:P-256) ;;
    rsa) key_options=(-algorithm RSA -pkeyopt rsa_keygen_bits:3072) ;;
    *) echo "The kind of keys is '$kind', but must be ec or rsa." >&2; exit 2 ;;
esac
command -v openssl > /dev/null || { echo "openssl is not installed: apt-get install openssl." >&2; exit 1; }

folder=$1
shift
names="DNS:localhost,IP:127.0.0.1,DNS:$(uname -n)"
for name in "$@"; do
    if [[ $name =~ ^[0-9]+(\.[0-9]+){3}$ || $name == *:* ]]; then
        names+=",IP:$name"
    elif [[ $name =~ ^[A-Za-z0-9*]([A-Za-z0-9.-]*[A-Za-z0-9])?$ ]]; then
        names+=",DNS:$name"
    else
        echo "'$name' is neither a host name nor an IP address." >&2
        exit 2
    fi
done

umask 077
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
for part in ca scheduler worker client; do
    for file in "$folder/$part.pem" "$folder/$part.key"; do
        [[ ! -e $file ]] || { echo "$file exists: give another folder, or remove it first." >&2; exit 1; }
    done
done

# All is made aside and moved at the end: a failure leaves nothing half made.
work=$(mktemp -d "$folder/.making.XXXXXX")
trap 'rm -rf "$work"' EXIT

make_key() {
    openssl genpkey "${key_options[@]}" -out "$work/$1.key" 2> /dev/null
}

make_key ca
openssl req -new -x509 -config /dev/stdin -key "$work/ca.key" -sha256 -days $((days * 10)) \
    -out "$work/ca.pem" <<'TEXT'
[req]
distinguished_name = subject
x509_extensions = authority
prompt = no
[subject]
CN = spore-dask private authority
[authority]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
TEXT

for part in scheduler worker client; do
    make_key "$part"
    openssl req -new -key "$work/$part.key" -subj "/CN=spore-dask $part" -out "$work/$part.csr"
    # Workers also connect to each other, and a scheduler to its workers: all serve and call.
    openssl x509 -req -in "$work/$part.csr" -CA "$work/ca.pem" -CAkey "$work/ca.key" \
        -set_serial "0x$(openssl rand -hex 16)" -sha256 -days "$days" -out "$work/$part.pem" \
        -extfile /dev/stdin 2> /dev/null <<TEXT
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature, keyEncipherment
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = $names
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
TEXT
    openssl verify -CAfile "$work/ca.pem" "$work/$part.pem" > /dev/null
done

chmod 600 "$work"/*.key
chmod 644 "$work"/*.pem
rm "$work"/*.csr
mv "$work"/* "$folder"

setting() {
    printf 'export DASK_DISTRIBUTED__COMM__%s=%q\n' "$1" "$2"
}
echo "# The same for scheduler, workers and client; each process reads what concerns it."
setting DEFAULT_SCHEME tls
setting REQUIRE_ENCRYPTION true
setting TLS__CA_FILE "$folder/ca.pem"
for part in scheduler worker client; do
    setting "TLS__${part^^}__CERT" "$folder/$part.pem"
    setting "TLS__${part^^}__KEY" "$folder/$part.key"
done
