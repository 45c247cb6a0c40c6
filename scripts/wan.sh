#!/usr/bin/env bash
# Create hosts as Linux network namespaces on a bridge, each with its own rate-limited link.
#
#   scripts/wan.sh up N [--rate 100mbit] [--delay 20ms] [--loss 0.1%] [--far M]
#   scripts/wan.sh run HOST COMMAND...     run a command on host 0 .. N-1, in this terminal
#   scripts/wan.sh address HOST            print the host's address, at which the others reach it
#   scripts/wan.sh part | heal             disconnect the last M hosts without resetting connections; reconnect them
#   scripts/wan.sh filter HOST PORT        drop what the host sends from a TCP port, as a firewall that drops packets does
#   scripts/wan.sh down                    remove everything, including processes on the hosts
#
#   host 0 ─┐                      ┌─ host N-M
#           near ──── cable ──── far              both switches are bridges in the namespace "hub"
#   host 1 ─┘                      └─ host N-1
#
# --rate     maximum rate of each host in each direction (token bucket, tc tbf); default: no cap
# --delay    delay of each outgoing packet (tc netem); a round trip between two hosts has it twice
# --loss     fraction of outgoing packets that are dropped (tc netem)
# --far      number of hosts on the far side of the cable, which `part` disconnects; default: 0
# WAN_NAME   name of this set of hosts, default "wan": sets with different names can exist at the same time
#
# Needs root, iproute2 and, for --delay and --loss, the kernel's netem; reports what is missing. Everything is in the
# namespaces outerloop-<WAN_NAME>-*, which `up` removes first, so nothing remains of a set whose program crashed.
set -eEuo pipefail

prefix="outerloop-${WAN_NAME:-wan}-"
hub="${prefix}hub"

fail() { echo "wan.sh: $1" >&2; exit 2; }

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }

check() {
  [ "$(id -u)" = 0 ] || fail "network namespaces need root: run sudo scripts/wan.sh"
  local tool
  for tool in ip tc; do
    command -v "$tool" >/dev/null || fail "$tool is missing: run apt-get install iproute2"
  done
}

spaces() { ip netns list | awk '{print $1}' | grep -xE "$prefix(hub|[0-9]+)" || true; }

down() {
  local one
  for one in $(spaces); do
    ip netns pids "$one" | xargs -r kill -KILL 2>/dev/null || true  # a process may have ended meanwhile
    ip netns delete "$one"
  done
}

address() { echo "10.77.$(($1 / 250)).$(($1 % 250 + 1))"; }

plug() { ip -n "$hub" link set "$1" master "$2" up; }

# Shape what a device sends: at most $rate, with netem's effects on each packet.
shape() { # namespace device netem-options...
  local space=$1 device=$2 parent=root
  shift 2
  if [ -n "$rate" ]; then
    tc -n "$space" qdisc add dev "$device" root handle 1: tbf rate "$rate" burst 256kb latency 50ms
    parent="parent 1:1"
  fi
  [ $# = 0 ] || tc -n "$space" qdisc add dev "$device" $parent handle 10: netem "$@" limit 100000
}

add_host() { # host switch
  local space="$prefix$1" port="port$1"
  ip -n "$hub" link add "$port" type veth peer name eth0 netns "$space"
  plug "$port" "$2"
  ip -n "$space" address add "$(address "$1")/16" dev eth0
  ip -n "$space" link set eth0 up
  shape "$space" eth0 "${netem[@]}"
  shape "$hub" "$port"
}

up() {
  local hosts=${1:-} far=0 host
  rate="" netem=()
  [[ $hosts =~ ^[1-9][0-9]*$ ]] || fail "up needs the number of hosts: run scripts/wan.sh up 4 --rate 100mbit"
  shift
  while [ $# -gt 1 ]; do
    case $1 in
      --rate) rate=$2 ;;
      --delay) netem+=(delay "$2") ;;
      --loss) netem+=(loss "$2") ;;
      --far) far=$2 ;;
      *) usage ;;
    esac
    shift 2
  done
  [ $# = 0 ] || usage
  down
  trap down ERR
  for host in hub $(seq 0 $((hosts - 1))); do
    ip netns add "$prefix$host"
    ip -n "$prefix$host" link set lo up
  done
  if [ ${#netem[@]} -gt 0 ] && ! tc -n "$hub" qdisc add dev lo root netem delay 0ms 2>/dev/null; then
    down
    fail "this kernel has no netem (sch_netem), so --delay and --loss are not supported: omit them"
  fi
  ip -n "$hub" link add near type bridge
  ip -n "$hub" link add far type bridge
  ip -n "$hub" link set near up
  ip -n "$hub" link set far up
  ip -n "$hub" link add cable-near type veth peer name cable-far
  plug cable-near near
  plug cable-far far
  for host in $(seq 0 $((hosts - 1))); do
    add_host "$host" "$([ "$host" -lt $((hosts - far)) ] && echo near || echo far)"
  done
}

command=${1:-}
[ $# = 0 ] || shift
case $command in
  up) check; up "$@" ;;
  run) check; host=${1:?the number of a host}; shift; exec ip netns exec "$prefix$host" "$@" ;;
  address) address "${1:?the number of a host}" ;;
  part) check; ip -n "$hub" link set cable-near down ;;
  filter) check; ip -n "$prefix${1:?the number of a host}" rule add ipproto tcp sport "${2:?a port}" blackhole ;;
  heal) check; ip -n "$hub" link set cable-near up ;;
  down) check; down ;;
  *) usage ;;
esac
