#!/usr/bin/env bash
# Installs the systems that `conclave bench --against` measures Conclave beside: etcd, ZooKeeper and
# Redis, from Debian's packages. Their services are not started: the benchmark starts servers of its
# own. A package that is already there, and its service, are left as they are.
set -euo pipefail

packages=(etcd-server zookeeper redis-server)
missing=()
for package in "${packages[@]}"; do
    if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ]; then
        echo "$package: already installed"
    else
        missing+=("$package")
    fi
done
if [ "${#missing[@]}" -eq 0 ]; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "run this as root, or install these yourself: ${missing[*]}" >&2
    exit 2
fi

# Debian asks this file before it starts the service of a new package; ours says no, and goes again.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}"

# They shall not start with the next boot either.
if command -v systemctl >/dev/null && [ -d /run/systemd/system ]; then
    for service in etcd zookeeper redis-server; do
        for package in "${missing[@]}"; do
            case "$package" in "$service"*) systemctl disable --now --quiet "$service" 2>/dev/null || true ;; esac
        done
    done
fi
for package in "${missing[@]}"; do
    echo "$package: installed $(dpkg-query -W -f '${Version}' "$package"), its service is off"
done
