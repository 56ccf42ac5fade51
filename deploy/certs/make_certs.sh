#!/usr/bin/env bash
# Makes a certificate authority and one certificate for each role, for mutual TLS between Baton's processes.
#   deploy/certs/make_certs.sh DIR                        what is missing in DIR: ca, router, prefill, decode, client, admin
#   deploy/certs/make_certs.sh DIR --renew [ROLE...]      new certificates (all roles, or these) for the keys that are there
#   deploy/certs/make_certs.sh DIR --new-keys [ROLE...]   new keys too
# Options: --days N (of role certificates; default 90)
#          --san ROLE=DNS:NAME,IP:ADDRESS  more names, for clients that check the host (a browser, grpcurl)
#
# A process says who it is by the name ROLE.baton.internal in its certificate, wherever it runs; Baton's own clients ask
# for that name. So one certificate serves all workers of a role, and no address is in it. DIR/ca.key signs new members:
# keep it off the machines that serve. Running processes read changed files by themselves (tls_reload_s).
set -euo pipefail

ROLES="router prefill decode client admin"
CA_DAYS=3650
DAYS=90
dir=
mode=missing
declare -A more_san=()
chosen=()

die() { echo "make_certs: $*" >&2; exit 2; }
is_role() { case " $ROLES " in *" $1 "*) ;; *) return 1 ;; esac; }

while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --renew | --new-keys) mode=${1#--} ;;
    --days) [[ ${2:-} =~ ^[1-9][0-9]{0,4}$ ]] || die "--days wants a number of days"; DAYS=$2; shift ;;
    --san)
      [[ ${2:-} == ?*=?* ]] && is_role "${2%%=*}" || die "--san wants ROLE=DNS:NAME,IP:ADDRESS; roles: $ROLES"
      more_san[${2%%=*}]=,${2#*=}
      shift ;;
    -*) die "unknown option $1; see --help" ;;
    *) if [ -z "$dir" ]; then dir=$1; elif is_role "$1"; then chosen+=("$1"); else die "unknown role $1; roles: $ROLES"; fi ;;
  esac
  shift
done
[ -n "$dir" ] || die "which folder? see --help"
command -v openssl >/dev/null || die "openssl is missing: apt-get install openssl"
[ ${#chosen[@]} -gt 0 ] || read -ra chosen <<<"$ROLES"

umask 077  # keys are for their owner
mkdir -p "$dir"
tmp=$(mktemp -d "$dir/.new.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

new_key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>/dev/null; }

if [ ! -e "$dir/ca.crt" ]; then
  [ ! -e "$dir/ca.key" ] || die "$dir has ca.key but no ca.crt; remove the key or put the certificate back"
  new_key "$tmp/ca.key"
  openssl req -x509 -new -key "$tmp/ca.key" -sha256 -days $CA_DAYS -subj "/O=Baton/CN=Baton cluster authority" \
    -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign,cRLSign" \
    -out "$tmp/ca.crt"
  chmod 644 "$tmp/ca.crt"
  mv "$tmp/ca.key" "$tmp/ca.crt" "$dir/"
  echo "$dir/ca.crt: new authority, $CA_DAYS days"
fi

for role in "${chosen[@]}"; do
  [ "$mode" = missing ] && [ -e "$dir/$role.crt" ] && [ -e "$dir/$role.key" ] && continue
  [ -e "$dir/ca.key" ] || die "$dir/ca.key is not here, and only it can sign a certificate for $role"
  if [ "$mode" != new-keys ] && [ -e "$dir/$role.key" ]; then
    cp "$dir/$role.key" "$tmp/$role.key"
  else
    new_key "$tmp/$role.key"
  fi
  san=DNS:$role.baton.internal
  usage=clientAuth
  case $role in router | prefill | decode) usage=serverAuth,clientAuth san+=,DNS:localhost,IP:127.0.0.1,IP:::1 ;; esac
  openssl req -new -key "$tmp/$role.key" -subj "/O=Baton/CN=$role.baton.internal" -out "$tmp/$role.csr"
  printf '%s\n' "basicConstraints=critical,CA:FALSE" "keyUsage=critical,digitalSignature" "extendedKeyUsage=$usage" \
    "subjectAltName=$san${more_san[$role]:-}" >"$tmp/$role.ext"
  openssl x509 -req -in "$tmp/$role.csr" -CA "$dir/ca.crt" -CAkey "$dir/ca.key" -sha256 -days "$DAYS" \
    -set_serial "0x$(openssl rand -hex 16 | sed 's/^./4/')" -extfile "$tmp/$role.ext" -out "$tmp/$role.crt" 2>/dev/null ||
    die "openssl could not sign the certificate of $role (is the name after --san well formed?)"
  chmod 644 "$tmp/$role.crt"
  # With a new key, a process that reads between the two moves takes no connections until it reads again; --renew has
  # no such moment.
  mv "$tmp/$role.key" "$dir/"
  mv "$tmp/$role.crt" "$dir/"
  echo "$dir/$role.crt: $DAYS days"
done
